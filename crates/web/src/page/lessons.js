// Short lessons: each sets up what it talks about, and asks the reader to change something.

/// The language of the lessons: what the reader chose before, or the first of the browser's that is here.
const languages = JSON.parse(new TextDecoder().decode(bytesOf("texts")));
const LANGUAGE = "gpt2-live language";

function firstLanguage() {
  let kept = null;
  try {
    kept = localStorage.getItem(LANGUAGE);
  } catch {
    // A frame may have no storage.
  }
  const wanted = [kept, ...navigator.languages].filter(Boolean).map((name) => name.slice(0, 2));
  return wanted.find((name) => Object.hasOwn(languages, name)) ?? "en";
}

let language = firstLanguage();
let texts = languages[language];
/// The lesson on the page; null while they are closed.
let lesson = null;
/// The choices that the lesson has set up; null until they are on the page.
let before = null;

/// Whether the reader has done what a lesson asks for.
const GOALS = {
  longer: (_, { text }) => byId("live-text").value.startsWith(text) && byId("live-text").value.trim().length > text.length,
  replaced: (_, { text }) => {
    const [old, present] = [text, byId("live-text").value].map((words) => words.trim().split(/\s+/));
    return old.length === present.length && old.filter((word, n) => word !== present[n]).length === 1;
  },
  token: (_, { text }) => page.state.token !== before.token && byId("live-text").value === text,
  sort: (sort) => page.state.sort === sort,
  changes: (changes) => wanted.changes.join() === changes.join(),
  stages: (names) => names.every((name) => stageParts.get(name)?.details.open),
  temperature: (temperature) => byId("live-temperature").value === temperature,
};

/// Whether the demo model runs, of which the lessons speak by the names of its heads.
const isDemoShown = () => !isOwn && first.model.is_demo;

/// A lesson as it is told of the model that runs: of another one than the demo model, it names what the page has found.
function told(number) {
  const { any = {}, ...lesson } = texts.lessons[number];
  if (isDemoShown()) return lesson;
  const { head: _, token: __, ...state } = lesson.state;
  return { ...lesson, state, ...any };
}

/// The changes that lessons have set up.
let setChanges = [];
/// The heads that the lesson speaks of, by the words that stand for them in its text.
let found = {};
/// Whether an address has set up the lesson.
let isResumed = false;

/// Sets up a lesson and shows it.
function openLesson(number) {
  lesson = number;
  [before, found, isResumed] = [null, {}, false];
  byId("live").dataset.lesson = "begins";
  const { text, changes = [], temperature = 1, stages } = told(lesson).state;
  halt();
  [wanted.ids, wanted.prompt, wanted.changes, setChanges] = [[], null, [...changes], changes];
  byId("live-compare").checked = true;
  for (const [name, id] of Object.entries(FIELDS)) putSetting(id, OWN_SETTINGS[name], OWN_SETTINGS[name]);
  putSetting("live-temperature", temperature, 1);
  byId("live-text").value = text;
  fitText();
  showChanges();
  if (!byId("guide").hidden) byId("guide-close").click();
  if (told(lesson).goal.temperature !== undefined) toggleDrawing(true);
  toggleWay(Boolean(stages));
  showLesson();
  byId("lesson-done").hidden = true;
  // A button that no longer works cannot keep the focus.
  if (document.activeElement === byId("lesson-back") && lesson === 0) byId("lesson-next").focus();
  if (!stages) askAnew();
}

/// Shows a lesson beside what an address has set up.
function resumeLesson(number) {
  lesson = number;
  [before, found, isResumed, setChanges] = [null, {}, true, []];
  byId("live").dataset.lesson = "begins";
  showLesson();
  byId("lesson-done").hidden = true;
}

/// The head of this model that is most of a kind, and whether it is of that kind at all.
function headOf(kind) {
  const heads = page.sources.filter(({ layer }) => layer !== null);
  const ofKind = heads.filter(({ runs }) => runs[0].kind === kind);
  // How much weight lies on the place that the kind is named for, if that is measured; otherwise, the most focused one.
  const measured = heads.some(({ runs }) => runs[0].summary[`on_${kind}`] !== undefined);
  const strength = ({ runs: [{ summary }] }) => (measured ? (summary[`on_${kind}`] ?? 0) : -summary.entropy);
  const best = (list) => list.reduce((most, head) => (strength(head) > strength(most) ? head : most));
  return { head: best(ofKind.length > 0 ? ofKind : heads), isOfKind: ofKind.length > 0 };
}

/// Finds the heads that a lesson speaks of. Returns the changes that it then sets up.
function findHeads({ kind, ablate }) {
  if (!kind) return [];
  const { head, isOfKind } = headOf(kind);
  found = { HEAD: head.name, KIND: kind, isOfKind };
  if (!ablate) return [];
  found.OTHER = headOf(ablate).head.name;
  return [`ablate ${found.OTHER}`];
}

/// Chooses what the lesson talks about, once its text is on the page.
function setUp() {
  if (lesson === null || before !== null || byId("live").dataset.state !== "shown") return;
  const { state } = told(lesson);
  const { token = shown.ids.length - 1, sort = "layer", stages = [] } = state;
  if (found.HEAD === undefined) {
    const changes = findHeads(state);
    if (changes.length > 0 && !isResumed) {
      setChanges = changes;
      change(() => true, changes);
    }
    showLesson();
    // The changes are on the page with the next answer.
    if (byId("live").dataset.state !== "shown") return;
  }
  if (!isResumed) {
    const source = page.sources.find(({ name }) => name === (state.head ?? found.HEAD));
    page.update({ ...(source ? { head: source.index, more: [] } : {}), token, sort, cell: null, pinned: null });
    for (const [name, { details }] of stageParts) details.open = stages.includes(name);
  }
  // The stages come with the next answer, and what they show is no change of the reader's.
  if (isWayOpen() && stageParts.size === 0) return;
  before = { token: page.state.token };
  // For programs that drive this page.
  byId("live").dataset.lesson = "ready";
}

/// Notes when the reader has done what the lesson asks for, and it is on the page.
function followLesson() {
  if (lesson === null || before === null || byId("live").dataset.state !== "shown") return;
  const { goal, state } = told(lesson);
  const isDone = ([name, value]) => GOALS[name](Array.isArray(value) ? value.map((text) => fill(text, found)) : value, state);
  if (Object.entries(goal).every(isDone)) byId("lesson-done").hidden = false;
}

function showLesson() {
  const { lessons, words } = texts;
  const { title, paragraphs, task, done } = told(lesson);
  const values = { HEAD: "…", OTHER: "…", ...found };
  const lines = [...(found.isOfKind === false ? [words.none] : []), ...paragraphs];
  byId("lesson").hidden = false;
  document.body.classList.add("with-lesson");
  byId("live-lessons").setAttribute("aria-expanded", "true");
  byId("lesson-text").replaceChildren(...lines.map((text) => make("p", "", fill(text, values))));
  byId("lesson-task").textContent = fill(task, values);
  byId("lesson-done").textContent = `✓ ${fill(done, values)}`;
  byId("lesson-choice").replaceChildren(...lessons.map(({ title }, n) => Object.assign(make("option", "", `${n + 1}. ${title}`), { value: n })));
  byId("lesson-choice").value = lesson;
  byId("lesson-choice").title = title;
  byId("lesson-back").disabled = lesson === 0;
  byId("lesson-back").textContent = words.back;
  byId("lesson-next").textContent = lesson === lessons.length - 1 ? words.end : words.next;
  byId("lesson-again").textContent = words.again;
}

function hideLessons() {
  lesson = null;
  byId("lesson").hidden = true;
  document.body.classList.remove("with-lesson");
  byId("live-lessons").setAttribute("aria-expanded", "false");
}

function closeLessons() {
  hideLessons();
  const changes = setChanges;
  setChanges = [];
  if (changes.length > 0) change((one) => changes.includes(one), []);
  byId("live-lessons").focus({ preventScroll: true });
}

byId("live-lessons").addEventListener("click", () => (lesson === null ? openLesson(0) : closeLessons()));
byId("lesson-close").addEventListener("click", closeLessons);
byId("lesson-back").addEventListener("click", () => openLesson(lesson - 1));
byId("lesson-again").addEventListener("click", () => openLesson(lesson));
byId("lesson-next").addEventListener("click", () => (lesson === texts.lessons.length - 1 ? closeLessons() : openLesson(lesson + 1)));
byId("lesson-choice").addEventListener("change", () => openLesson(+byId("lesson-choice").value));
for (const [code, { name }] of Object.entries(languages)) byId("lesson-language").append(Object.assign(make("option", "", name), { value: code, lang: code }));
function setLanguage(code) {
  language = code;
  texts = languages[code];
  for (const id of ["lesson", "way"]) byId(id).lang = code;
}

setLanguage(language);
byId("lesson-language").value = language;
byId("lesson-language").addEventListener("change", () => {
  setLanguage(byId("lesson-language").value);
  try {
    localStorage.setItem(LANGUAGE, language);
  } catch {
    // Then the browser's language comes again next time.
  }
  showLesson();
  if (isWayOpen()) askAnew();
});
