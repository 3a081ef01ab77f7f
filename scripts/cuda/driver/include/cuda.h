// See cuda_on_cpu/language.hpp, which comes before each file.
#pragma once
#include "cuda_on_cpu/language.hpp"
