// The start.

showChanges();
if (!globalThis.WebAssembly || !globalThis.DecompressionStream) {
  isDown = true;
  tell("This browser is too old for the model.", true);
} else {
  askAnew();
  startOrTell();
}
