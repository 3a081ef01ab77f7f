// The worker that holds the model: what it is asked, and what becomes of its answers.

/// A block of this file, or what a script beside docs/live.html has in its place.
const textOf = (kind) => globalThis.gpt2Live?.[kind] ?? document.querySelector(`script.${kind}`).textContent;

function bytesOf(kind) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(textOf(kind));
  const binary = atob(textOf(kind));
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/// The address of the worker's script, which is part of this file.
const workerUrl = URL.createObjectURL(new Blob([bytesOf("worker")], { type: "text/javascript" }));
const policy = globalThis.trustedTypes?.createPolicy("gpt2-live", { createScriptURL: () => workerUrl });

let worker = null;
let isReady = false;
let isBusy = false;
/// The newest question that the worker has not been asked yet.
let waiting = null;
/// The question that the worker was asked last, and when the reader asked it.
let asked = null;

/// The model that the page came with.
const brought = () => ({
  name: first.model.name,
  files: first.model.files.map((name, i) => ({ name, file: new Blob([bytesOf(`file-${i}`)]) })),
  isDemo: first.model.is_demo,
  isOwn: false,
});

function start() {
  worker = new Worker(policy ? policy.createScriptURL("") : workerUrl);
  worker.onmessage = ({ data }) => answered(data);
  worker.onerror = (event) => stopped(event.message ?? "its script did not load");
  worker.postMessage({ module: new Blob([bytesOf("module")]), model: brought(), wanted: first.interface });
}

/// The model that the worker has not been asked to open yet.
let chosen = null;
/// Whether the model in the worker is the reader's own.
let isOwn = false;
/// What went wrong with a model, if an answer that is on its way would hide it.
let trouble = "";
/// The milliseconds of a picture above which a run draws several tokens for each.
const SLOW = 150;
/// Whether the last one took longer.
let isSlow = false;
/// Whether the page still shows another model than the worker has.
let isOther = false;
/// What became of the last question that was answered.
let outcome = "refused";
/// Whether no model runs here.
let isDown = false;

function ask(look) {
  // A question that takes the place of one that was not sent yet is about the same address.
  waiting = { ...look, arriving: arriving ?? waiting?.arriving ?? null, at: performance.now() };
  arriving = null;
  goOn();
}

/// Gives the worker its next task.
function goOn() {
  if (isDown || (!waiting && !chosen)) return;
  byId("live").dataset.state = "asked";
  if (!isReady || isBusy) return;
  isBusy = true;
  if (chosen) {
    worker.postMessage({ model: chosen });
    [chosen, asked] = [null, null];
    return;
  }
  [asked, waiting] = [waiting, null];
  const { at, more, arriving: choices, ...look } = asked;
  worker.postMessage({ look: JSON.stringify(look), more });
}

async function answered({ ready, answer, took, error, opened, failed, stopped: isDead }) {
  isBusy = false;
  if (isDead) return stopped(error);
  const question = asked;
  if (ready) {
    isReady = true;
    for (const id of ["live-text", "live-next", "live-run", "live-open", "live-link"]) byId(id).disabled = false;
  }
  if (opened) {
    // A link may have come meanwhile.
    arriving ??= waiting?.arriving ?? null;
    [isOwn, waiting, trouble, isOther] = [opened.isOwn, null, "", true];
    forget();
    askAnew();
    goOn();
    // A field that holds no value keeps the question back.
    if (!isBusy) {
      halt();
      settle("refused");
    }
    return;
  }
  // The worker goes on while this answer is drawn.
  goOn();
  if (failed) {
    halt();
    trouble = isBusy ? failed : "";
    tell(failed, true);
    settle(outcome);
  } else if (error && asked !== question && asked !== null) {
    // The newest question is another one by now, and chooses what this one was to choose.
    asked.arriving ??= question?.arriving ?? null;
  } else if (error) {
    halt();
    trouble = "";
    arriving ??= question?.arriving ?? null;
    if (fallBack(error)) return;
    tell(error, true);
    settle("refused");
  } else if (!ready) {
    await receive(answer, question, took);
  }
}

/// Notes what became of the newest question, also for programs that drive this page.
function settle(state) {
  outcome = state;
  if (!isBusy && !waiting && !chosen) byId("live").dataset.state = state;
}

/// The module cannot go on: it starts anew, with the model that is in the page. The question that broke it is not asked again.
function stopped(error) {
  worker.terminate();
  halt();
  const again = isReady;
  [isReady, isBusy, isDown, trouble] = [false, false, !again, ""];
  if (isOwn) {
    [isOwn, waiting, isOther] = [false, null, true];
    forget();
    tell(`The model stopped (${error}). The one that came with the page starts instead: change the text.`, true);
  } else if (again) {
    tell(`The model stopped (${error}) and is started again: change the text.`, true);
  } else {
    tell(`The model did not start: ${error}`, true);
  }
  settle("refused");
  if (again) startOrTell();
}

function startOrTell() {
  try {
    start();
  } catch (error) {
    isDown = true;
    tell(`The model did not start: ${error.message}`, true);
  }
}

/// The drawing of the last answer.
let underway = null;

/// In a run, the worker computes the next picture while this one is drawn. What follows a token needs the new page first.
function goAhead(question, next) {
  if (!wanted.runs || !next.next || isWayOpen()) return;
  drawAfter(next);
  if (asked !== question) [question.ahead, asked.isAhead] = [asked, true];
}

async function receive(answer, question, took) {
  const end = answer.indexOf("\n");
  const [next, lines] = [JSON.parse(answer.slice(0, end)), answer.slice(end + 1).trimEnd()];
  while (isPressed) await nextFrame();
  // Every token of a run is seen.
  if (question.isAhead) await underway;
  // The answer to a later question may be on the page by now.
  if (question.at < shownAt) return;
  shownAt = question.at;
  isFromAddress = false;
  isOther = false;
  isSlow = took > SLOW;
  // Unless the reader has typed since, or taken tokens back.
  if (question.ids.length > 0 && question.ids === wanted.ids) {
    if (next.ends) halt();
    wanted.ids = next.ids;
    goAhead(question, next);
    // Before the page below is drawn: the browser would lay all of it out to find where the text ends.
    putText(next.text);
  }
  // The tokens to draw from change nothing on the page.
  const drawing = lines === drawn && question.arriving === null ? null : draw(lines, next.ids.length, question.arriving);
  underway = drawing;
  [shown, drawn] = [next, lines];
  showButtons();
  showDraw();
  showWay(next, question, asked === question);
  page.rememberSoon();
  await drawing;
  if (asked !== question && asked !== null && asked !== question.ahead) return;
  settle("shown");
  setUp();
  followLesson();
  followChoice();
  // What is said of a model stays.
  if (asked === null) return;
  const left = next.left_out ? `; the vocabulary cannot spell ${next.left_out}` : "";
  const count = `${next.ids.length} token${next.ids.length === 1 ? "" : "s"}`;
  if (trouble) tell(trouble, true);
  else tell(`${count}, ${Math.round(performance.now() - question.at)} ms${left}`, false);
  trouble = "";
  if (wanted.runs || wanted.another) drawNext();
}
