// Loads kernels: where a GPU's driver reads code, this one reads the name of a library that the stand-in for nvcc made.
#include "driver.hpp"
#include <cstring>
#include <dlfcn.h>
#include <map>

namespace cuda_on_cpu {
namespace {

struct Module {
    std::map<std::string, Function> functions;
};

constexpr char MARK[] = "cuda-on-cpu ";

/// The folders that may have the library, the first being for kernels that replace others.
std::vector<std::string> folders() {
    std::vector<std::string> found;
    if (const char *own = getenv("CUDA_ON_CPU_KERNELS")) found.push_back(own);
    Dl_info info;
    if (dladdr(reinterpret_cast<void *>(&folders), &info)) {
        const std::string library = info.dli_fname;
        found.push_back(library.substr(0, library.rfind('/') + 1) + "../kernels");
    }
    return found;
}

} // namespace

int load_module(const char *image, void **module) {
    if (strncmp(image, MARK, strlen(MARK)) != 0)
        return refuse(200, "a module that the stand-in for nvcc did not make; build with NVCC=scripts/cuda/driver/nvcc");
    const char *const name = image + strlen(MARK);
    const std::string file(name, strcspn(name, "\r\n"));
    std::string tried;
    for (const std::string &folder : folders()) {
        const std::string path = folder + "/" + file + ".so";
        void *const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            tried += std::string("\n  ") + dlerror();
            continue;
        }
        const auto *const list = static_cast<Kernel *const *>(dlsym(library, "cuda_on_cpu_kernels"));
        const auto *const made_for = static_cast<const unsigned *>(dlsym(library, "cuda_on_cpu_capability"));
        if (!list || !made_for) return refuse(200, "%s has no list of kernels, or no compute capability", path.c_str());
        if (*made_for > settings().capability)
            return refuse(209, "%s is compiled for %u, and CUDA_ON_CPU_CAPABILITY is %u", path.c_str(), *made_for, settings().capability);
        Module *const made = new Module;
        for (const Kernel *kernel = *list; kernel; kernel = kernel->next) made->functions[kernel->name].kernel = kernel;
        *module = made;
        return 0;
    }
    return refuse(301, "no kernels of %s:%s", file.c_str(), tried.c_str());
}

Function *function_of(void *module, const char *name) {
    auto &functions = static_cast<Module *>(module)->functions;
    const auto found = functions.find(name);
    return found == functions.end() ? nullptr : &found->second;
}

} // namespace cuda_on_cpu
