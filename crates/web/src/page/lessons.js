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

/// Lessons speak of the demo model.
function showLessonsButton() {
  byId("live-lessons").hidden = isOwn || first.model !== null;
  if (lesson !== null && byId("live-lessons").hidden) closeLessons();
}

/// The changes that lessons have set up.
let setChanges = [];

/// Sets up a lesson and shows it.
function openLesson(number) {
  lesson = number;
  before = null;
  byId("live").dataset.lesson = "begins";
  const { text, changes = [], temperature = 1, stages } = texts.lessons[lesson].state;
  halt();
  [wanted.ids, wanted.prompt, wanted.changes, setChanges] = [[], null, [...changes], changes];
  byId("live-compare").checked = true;
  byId("live-top-k").value = "";
  byId("live-top-p").value = byId("live-top-p-shown").textContent = 1;
  byId("live-text").value = text;
  byId("live-temperature").value = temperature;
  byId("live-temperature-shown").textContent = temperature;
  showChanges();
  if (!byId("guide").hidden) byId("guide-close").click();
  toggleWay(Boolean(stages));
  showLesson();
  byId("lesson-done").hidden = true;
  // A button that no longer works cannot keep the focus.
  if (document.activeElement === byId("lesson-back") && lesson === 0) byId("lesson-next").focus();
  byId("lesson-back").disabled = lesson === 0;
  if (!stages) askAnew();
}

/// Chooses what the lesson talks about, once its text is on the page.
function setUp() {
  if (lesson === null || before !== null || byId("live").dataset.state !== "shown") return;
  const { head, token = shown.ids.length - 1, sort = "layer", stages = [] } = texts.lessons[lesson].state;
  const source = page.sources.find(({ name }) => name === head);
  page.update({ ...(source ? { head: source.index, more: [] } : {}), token, sort, cell: null, pinned: null });
  for (const [name, { details }] of stageParts) details.open = stages.includes(name);
  // The stages come with the next answer, and what they show is no change of the reader's.
  if (isWayOpen() && stageParts.size === 0) return;
  before = { token: page.state.token };
  // For programs that drive this page.
  byId("live").dataset.lesson = "ready";
}

/// Notes when the reader has done what the lesson asks for, and it is on the page.
function followLesson() {
  if (lesson === null || before === null || byId("live").dataset.state !== "shown") return;
  const { goal, state } = texts.lessons[lesson];
  if (Object.entries(goal).every(([name, wanted]) => GOALS[name](wanted, state))) byId("lesson-done").hidden = false;
}

function showLesson() {
  const { lessons, words } = texts;
  const { title, paragraphs, task, done } = lessons[lesson];
  byId("lesson").hidden = false;
  byId("live-lessons").setAttribute("aria-expanded", "true");
  byId("lesson-text").replaceChildren(...paragraphs.map((text) => make("p", "", text)));
  byId("lesson-task").textContent = task;
  byId("lesson-done").textContent = `✓ ${done}`;
  byId("lesson-choice").replaceChildren(...lessons.map(({ title }, n) => Object.assign(make("option", "", `${n + 1}. ${title}`), { value: n })));
  byId("lesson-choice").value = lesson;
  byId("lesson-choice").title = title;
  byId("lesson-back").textContent = words.back;
  byId("lesson-next").textContent = lesson === lessons.length - 1 ? words.end : words.next;
  byId("lesson-again").textContent = words.again;
}

function closeLessons() {
  lesson = null;
  if (setChanges.length > 0) change((one) => setChanges.includes(one), []);
  setChanges = [];
  byId("lesson").hidden = true;
  byId("live-lessons").setAttribute("aria-expanded", "false");
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
showLessonsButton();
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
