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
/// What the lesson has set up; null until that is on the page.
let before = null;

/// What a lesson may ask the reader to change.
const PARTS = {
  text: () => byId("live-text").value,
  token: () => page.state.token,
  head: () => page.state.head,
  sort: () => page.state.sort,
  changes: () => wanted.changes.join(),
  drawn: () => wanted.prompt,
  temperature: () => byId("live-temperature").value,
  stage: () => [...document.querySelectorAll("#way details[open]")].map(({ dataset }) => dataset.stage).join(),
};

/// Sets up a lesson and shows it.
function openLesson(number) {
  lesson = number;
  before = null;
  byId("live").dataset.lesson = "begins";
  const { text, changes = [], temperature = 1, stages } = texts.lessons[lesson].state;
  halt();
  [wanted.ids, wanted.prompt, wanted.changes] = [[], null, [...changes]];
  byId("live-text").value = text;
  byId("live-temperature").value = temperature;
  byId("live-temperature-shown").textContent = temperature;
  showChanges();
  if (!byId("guide").hidden) byId("guide-close").click();
  toggleWay(Boolean(stages));
  showLesson();
  if (!stages) askAnew();
}

/// Chooses what the lesson talks about, once its text is on the page.
function setUp() {
  if (lesson === null || before !== null || byId("live").dataset.state !== "shown") return;
  const { head, token, sort = "layer", stages = [] } = texts.lessons[lesson].state;
  const source = page.sources.find(({ name }) => name === head);
  page.update({ ...(source ? { head: source.index, more: [] } : {}), ...(token === undefined ? {} : { token }), sort });
  for (const [name, { details }] of stageParts) details.open = stages.includes(name);
  // The stages come with the next answer, and what they show is no change of the reader's.
  if (isWayOpen() && stageParts.size === 0) return;
  before = Object.fromEntries(Object.entries(PARTS).map(([name, read]) => [name, read()]));
  // For programs that drive this page.
  byId("live").dataset.lesson = "ready";
}

/// Notes what the reader has changed.
function followLesson() {
  if (lesson === null || !page) return;
  const { watch } = texts.lessons[lesson];
  if (before !== null && PARTS[watch]() !== before[watch]) byId("lesson-done").hidden = false;
}

function showLesson() {
  const { lessons, words } = texts;
  const { title, paragraphs, task, done } = lessons[lesson];
  byId("lesson").hidden = false;
  byId("lesson").lang = language;
  byId("live-lessons").setAttribute("aria-expanded", "true");
  byId("lesson-text").replaceChildren(...paragraphs.map((text) => make("p", "", text)));
  byId("lesson-task").textContent = task;
  byId("lesson-done").textContent = `✓ ${done}`;
  byId("lesson-done").hidden = true;
  byId("lesson-choice").replaceChildren(...lessons.map(({ title }, n) => Object.assign(make("option", "", `${n + 1}. ${title}`), { value: n })));
  byId("lesson-choice").value = lesson;
  byId("lesson-choice").title = title;
  byId("lesson-back").textContent = words.back;
  byId("lesson-next").textContent = lesson === lessons.length - 1 ? words.end : words.next;
  byId("lesson-again").textContent = words.again;
  byId("lesson-back").disabled = lesson === 0;
}

function closeLessons() {
  lesson = null;
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
byId("lesson-language").value = language;
byId("lesson-language").addEventListener("change", () => {
  language = byId("lesson-language").value;
  texts = languages[language];
  try {
    localStorage.setItem(LANGUAGE, language);
  } catch {
    // Then the browser's language comes again next time.
  }
  showLesson();
  if (isWayOpen()) askAnew();
});
