// A table that grows while the page is open: flows or drops.

import { ask, isStatic } from './api.js';
import { element, fill, plural } from './dom.js';

/// The time between two requests for new entries.
const POLL_INTERVAL = 1000;
/// The most rows of the table.
const MAX_LIVE_ROWS = 300;
/// The most entries that the page keeps, if the server does not say.
const MAX_ENTRIES = 5000;

/// An empty list. `kind` is the request; `noun` names an entry.
export function liveList(kind, noun) {
  return { kind, noun, entries: new Map(), last: 0, filter: '', choice: '', paused: false, timer: 0 };
}

/// Forgets the entries.
export function forget(list) {
  list.entries.clear();
  list.last = 0;
}

/// The view of a list. `table` has the functions that differ between lists:
/// `entries(answer)` gives pairs of a key and an entry, `text(entry)` the text that a filter searches,
/// `time(entry)` the sort key, `choice(entry)` the value of the selection, `row(entry)` a row.
export async function liveView(container, list, table) {
  clearTimeout(list.timer);
  const noun = plural(2, list.noun).slice(2);
  const filter = element('input', { type: 'search', placeholder: `Filter ${noun}`, value: list.filter, aria: { label: `Filter ${noun}` } });
  const choice = element('select', { aria: { label: table.choiceLabel } }, table.choices.map(([value, text]) => element('option', { value }, text)));
  choice.value = list.choice;
  const pause = element('button', { type: 'button', aria: { pressed: String(list.paused) } }, 'Pause');
  const state = element('span', { class: 'faint', role: 'status' });
  const problems = element('div', { class: 'problems', role: 'status' });
  const content = element('div', { class: 'pad' });
  const view = { list, table, state, problems, content };
  filter.addEventListener('input', () => { list.filter = filter.value.trim(); drawEntries(view); });
  choice.addEventListener('change', () => { list.choice = choice.value; drawEntries(view); });
  pause.addEventListener('click', () => {
    list.paused = !list.paused;
    pause.setAttribute('aria-pressed', String(list.paused));
    if (!list.paused) poll(view);
  });
  fill(container, element('div', { class: 'toolbar' }, filter, choice, pause, element('span', { class: 'spacer' }), state), problems, content);
  await update(view);
}

/// Reads new entries, and continues while the view is shown and further entries can follow.
async function update(view) {
  const { list, table, content } = view;
  clearTimeout(list.timer);
  const { answer, added } = await readAnswer(list, table);
  if (!answer.available) {
    fill(content, table.missing());
    return;
  }
  showState(view, answer);
  if (added > 0 || content.childElementCount === 0) drawEntries(view);
  const isLive = !isStatic && (answer.isLive ?? true);
  const isOver = list.paused || (!isLive && !answer.more);
  if (!isOver && content.isConnected) list.timer = setTimeout(() => poll(view), answer.more ? 0 : POLL_INTERVAL);
}

/// All entries that there are now.
export async function readEntries(list, table) {
  let more = true;
  while (more) more = (await readAnswer(list, table)).answer.more;
  return [...list.entries.values()];
}

/// Reads new entries into the list. Returns the answer and the number of entries in it.
async function readAnswer(list, table) {
  const answer = await ask({ kind: list.kind, after: list.last });
  if (!answer.available) return { answer, added: 0 };
  const added = table.entries(answer);
  for (const [key, entry] of added) {
    // The order of a Map is that of the insertion, so that the oldest entry comes first.
    list.entries.delete(key);
    list.entries.set(key, entry);
  }
  for (const key of list.entries.keys()) {
    if (list.entries.size <= (answer.max ?? MAX_ENTRIES)) break;
    list.entries.delete(key);
  }
  // A static page contains no request after the last answer, so the next one starts again.
  list.last = isStatic && !answer.more ? 0 : answer.last;
  return { answer, added: added.length };
}

/// Updates the view, and tries again later if the server does not answer.
function poll(view) {
  const { list, state, content } = view;
  if (!content.isConnected) return;
  update(view).catch((error) => {
    state.textContent = `${error.message}; trying again`;
    list.timer = setTimeout(() => poll(view), 5 * POLL_INTERVAL);
  });
}

function showState({ list, state, problems }, { isLive = true, leftOut, wrongLines, problems: reported = [] }) {
  const words = [isLive ? 'live' : 'recording', plural(list.entries.size, list.noun), leftOut > 0 && `${leftOut.toLocaleString('en')} older left out`];
  state.textContent = words.filter(Boolean).join(' · ');
  const count = wrongLines?.count ?? 0;
  const key = JSON.stringify([reported, count]);
  if (problems.dataset.key === key) return;
  problems.dataset.key = key;
  const more = count - (wrongLines?.first.length ?? 0);
  fill(problems, reported.length + count > 0 && element('ul', {},
    reported.map((text) => element('li', { class: 'bad' }, text)),
    count > 0 && element('li', { class: 'some' }, `${plural(count, 'wrong line')}:`, element('ul', {}, wrongLines.first.map((text) => element('li', {}, text)), more > 0 && element('li', {}, `and ${more.toLocaleString('en')} more`)))));
}

function drawEntries({ list, table, content }) {
  const { filter, choice } = list;
  const matches = (entry) => (choice === '' || table.choice(entry) === choice) && table.text(entry).includes(filter);
  const found = [...list.entries.values()].filter(matches).sort((one, two) => (table.time(one) < table.time(two) ? 1 : -1));
  const rows = found.slice(0, MAX_LIVE_ROWS).map((entry) => element('tr', {}, table.row(entry)));
  const focused = content.contains(document.activeElement) ? document.activeElement.getAttribute('aria-label') : null;
  fill(content, element('table', { class: `list ${list.kind}` }, element('caption', {}, plural(found.length, list.noun)),
    element('thead', {}, element('tr', {}, table.columns.map((text) => element('th', { scope: 'col' }, text)))), element('tbody', {}, rows)),
  found.length > rows.length && element('p', { class: 'faint' }, `The table shows the last ${rows.length}.`));
  // The rows are new elements; the focus stays on its row.
  if (focused !== null) [...content.querySelectorAll('button')].find((button) => button.getAttribute('aria-label') === focused)?.focus();
}

/// The cells of a time in RFC 3339.
export function timeCell(text) {
  return element('td', { class: 'faint' }, text.slice(0, 19).replace('T', ' '));
}
