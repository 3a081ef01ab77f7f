// A model of the reader's own, and the way back to the one that came with the page.

/// What was set for another model.
function forget() {
  showBack();
  // It spoke of the model before.
  if (lesson !== null) hideLessons();
  [wanted.ids, wanted.prompt, wanted.changes] = [[], null, []];
  showChanges();
  showButtons();
}

/// The most bytes that are read. The module has 4 GB for the files, the model that comes of them, and the one before.
const LARGEST = 1.5e9;

/// Opens a model from files, in a folder or by themselves. The model before stays if that fails.
function openModel(files, folder = null) {
  if (isDown) return;
  const isGguf = (name) => /\.gguf$/i.test(name);
  const has = (name) => files.some((file) => file.name === name);
  const isNeeded = ({ name }) =>
    isGguf(name) ? !has("config.json") : first.files.includes(name) && !(name === "pytorch_model.bin" && has("model.safetensors"));
  const needed = files.filter(isNeeded).map((file) => ({ name: file.name, file }));
  const name = folder ?? (files.length === 1 ? files[0].name : "your files");
  if (needed.length === 0) {
    const found = files.length === 1 ? files[0].name : `${name}, ${files.length} files`;
    const why = `${found}: no model. It is one GGUF file, or config.json with model.safetensors and the tokenizer's files.`;
    trouble = byId("live").dataset.state === "asked" ? why : "";
    return tell(why, true);
  }
  const size = needed.reduce((sum, { file }) => sum + file.size, 0);
  const megabytes = `${(size / 1e6).toFixed(size < 1e7 ? 1 : 0)} MB`;
  halt();
  if (size > LARGEST) {
    const why = `${name}: ${megabytes}, but a page reads up to 1500 MB: make the model smaller with gpt2 quantize.`;
    trouble = byId("live").dataset.state === "asked" ? why : "";
    return tell(why, true);
  }
  trouble = "";
  tell(`Reading ${name}, ${megabytes} …`, false);
  chosen = { name, files: needed, isDemo: false, isOwn: true };
  goOn();
}

/// Opens the model that came with the page again.
function goBack() {
  halt();
  trouble = "";
  tell(`Reading ${first.model.name} …`, false);
  chosen = brought();
  goOn();
}

function showBack() {
  byId("live-back").hidden = !isOwn;
  byId("live-back").textContent = first.model.is_demo ? "Back to the demo model" : `Back to ${first.model.name}`;
}
byId("live-back").addEventListener("click", () => {
  byId("live-open").focus({ preventScroll: true });
  goBack();
});

byId("live-open").addEventListener("click", () => byId("live-files").click());
byId("live-files").addEventListener("change", () => {
  if (byId("live-files").files.length > 0) openModel([...byId("live-files").files]);
  byId("live-files").value = "";
});

/// The files of a dropped folder, without those of folders inside.
async function filesIn(folder) {
  const reader = folder.createReader();
  const entries = [];
  for (let part = null; part?.length !== 0; entries.push(...part)) {
    part = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
  }
  const file = (entry) => new Promise((resolve, reject) => entry.file(resolve, reject));
  return Promise.all(entries.filter((entry) => entry.isFile).map(file));
}

addEventListener("dragover", (event) => {
  if (event.dataTransfer.types.includes("Files")) event.preventDefault();
});
addEventListener("drop", async (event) => {
  const items = [...event.dataTransfer.items].filter(({ kind }) => kind === "file");
  if (items.length === 0) return;
  event.preventDefault();
  // Both must be asked for before this function waits.
  const [folders, files] = [items.map((item) => item.webkitGetAsEntry()), items.map((item) => item.getAsFile())];
  try {
    if (items.length === 1 && folders[0]?.isDirectory) openModel(await filesIn(folders[0]), folders[0].name);
    else openModel(files.filter((file) => file !== null));
  } catch (error) {
    tell(`What was dropped cannot be read: ${error.message}`, true);
  }
});

function tell(text, isWrong) {
  // Numbers that change with every letter are not read aloud.
  byId("live-status").setAttribute("aria-live", isWrong ? "polite" : "off");
  byId("live-status").textContent = text;
  byId("live-status").classList.toggle("wrong", isWrong);
}
