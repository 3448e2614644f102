// The matrix: a table of workloads, or of namespaces if there are many.

import { arrowKeys, element, fill, plural } from './dom.js';
import { showConnection } from './explain.js';
import { cellsBetween, model, portText, REACH } from './model.js';

/// The most rows and columns of a table.
const MAX_LINES = 120;

const matrixState = { filter: '', pair: null };

/// The view.
export async function matrixView(container) {
  const { overview } = model;
  if (matrixState.overview !== overview) Object.assign(matrixState, { overview, pair: null });
  const filter = element('input', { type: 'search', placeholder: 'Filter rows and columns', value: matrixState.filter, aria: { label: 'Filter rows and columns' } });
  const frame = element('div', { class: 'matrix-frame' });
  filter.addEventListener('input', () => {
    matrixState.filter = filter.value.trim();
    drawTable(frame);
  });
  fill(container, element('div', { class: 'toolbar' }, filter, legend()), frame);
  await drawTable(frame);
}

function legend() {
  const { hasPolicies } = model.overview;
  const shown = Object.entries(REACH).filter(([reach]) => hasPolicies || reach !== 'notJudged');
  return element('p', { class: 'legend' }, shown.map(([reach, { sign, word }]) => element('span', {}, element('span', { class: `sign ${reach}` }, sign), ` ${word}`)));
}

async function drawTable(frame) {
  const { overview } = model;
  if (matrixState.pair !== null) return drawPair(frame, ...matrixState.pair);
  if (overview.cells !== null) {
    const all = overview.ends.map((_, at) => at);
    const cells = new Map(overview.cells.rows.map(([from, to, cell]) => [`${from} ${to}`, overview.cells.cells[cell]]));
    return fill(frame, endTable(all, all.slice(0, overview.columns), cells));
  }
  return fill(frame, namespaceTable(frame));
}

async function drawPair(frame, from, to) {
  const { namespaces } = model.overview;
  const rows = await cellsBetween(from, to);
  const cells = new Map(rows.map(([source, target, cell]) => [`${source} ${target}`, cell]));
  const back = element('button', { type: 'button', on: { click: () => {
    matrixState.pair = null;
    drawTable(frame);
  } } }, '← All namespaces');
  fill(frame, element('p', { class: 'pad' }, back, ` ${namespaces[from].name} → ${namespaces[to].name}`), endTable(namespaces[from].ends, namespaces[to].ends, cells));
  back.focus();
}

/// A cell without a connection.
function emptyCell() {
  return { sign: '·', reach: 'no-cell', label: model.overview.hasPolicies ? 'not evaluated' : 'not observed' };
}

/// A table of workloads.
function endTable(from, to, cells) {
  const { ends } = model.overview;
  const matches = (end) => ends[end].name.includes(matrixState.filter);
  const rows = from.filter(matches).slice(0, MAX_LINES);
  const columns = to.filter(matches).slice(0, MAX_LINES);
  const cell = (source, target) => {
    const value = cells.get(`${source} ${target}`);
    if (value === undefined) return emptyCell();
    const { sign, word } = REACH[value.reach];
    return { sign, reach: value.reach, label: `${word}, ${portText(value)}`, open: () => showConnection(source, target, value) };
  };
  const cut = rows.length < from.length || columns.length < to.length;
  return table(rows, columns, (end) => ends[end].name, cell, cut && matrixState.filter === '' ? `The table shows ${rows.length} of ${plural(from.length, 'row')}: use the filter.` : '');
}

/// A table of namespaces, with the share of open connections.
function namespaceTable(frame) {
  const { namespaces, links } = model.overview;
  const counts = new Map(links.map(([from, to, ...rest]) => [`${from} ${to}`, rest]));
  const matches = (at) => namespaces[at].name.includes(matrixState.filter);
  const all = namespaces.map((_, at) => at).filter(matches);
  const shown = all.slice(0, MAX_LINES);
  const cell = (from, to) => {
    const count = counts.get(`${from} ${to}`);
    if (count === undefined) return emptyCell();
    const [open, some, none, unknown] = count;
    const reach = some === 0 && none === 0 && unknown === 0 ? 'all' : open + some === 0 ? (unknown > 0 ? 'notJudged' : 'none') : 'some';
    const label = `${open} of ${plural(open + some + none + unknown, 'connection')} open, ${some} partly`;
    return { sign: REACH[reach].sign, reach, label, open: () => {
      matrixState.pair = [from, to];
      drawTable(frame);
    } };
  };
  return table(shown, shown, (at) => namespaces[at].name, cell, shown.length < all.length ? `The table shows ${shown.length} of ${plural(all.length, 'namespace')}: use the filter.` : '');
}

/// A name without the kind of the workload.
function short(name) {
  const parts = name.split('/');
  return parts.length === 3 ? `${parts[0]}/${parts[2]}` : name;
}

/// A table whose cells are reached with the arrow keys.
function table(rows, columns, name, cell, note) {
  const openers = new Map();
  const body = rows.map((from, row) => element('tr', {}, element('th', { scope: 'row', title: name(from) }, short(name(from))), columns.map((to, column) => {
    const { sign, reach, label, open } = cell(from, to);
    const node = element('td', { class: `cell ${reach}`, role: 'gridcell', tabIndex: row === 0 && column === 0 ? 0 : -1, title: `${name(from)} → ${name(to)}: ${label}`, aria: { label: `${name(from)} to ${name(to)}: ${label}` } }, sign);
    if (open) openers.set(node, open);
    return node;
  })));
  const head = element('tr', {}, element('th', { scope: 'col' }, element('span', { class: 'corner' }, 'from ↓ to →')), columns.map((to) => element('th', { scope: 'col', class: 'column', title: name(to) }, element('span', {}, short(name(to))))));
  const node = element('table', { class: 'matrix', role: 'grid' }, element('caption', { class: 'visually-hidden' }, 'Which workloads reach which'), element('thead', {}, head), element('tbody', {}, body));
  node.addEventListener('click', (event) => openers.get(event.target.closest('td'))?.());
  node.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' || event.key === ' ') {
      openers.get(event.target)?.();
      event.preventDefault();
    } else if (event.target.matches('td')) arrowKeys(event, [...node.querySelectorAll('td')], columns.length);
  });
  return element('div', {}, note !== '' && element('p', { class: 'faint pad' }, note), rows.length === 0 ? element('p', { class: 'faint pad' }, 'Nothing matches the filter.') : node);
}
