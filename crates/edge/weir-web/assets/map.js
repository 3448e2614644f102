// The map: a card for each namespace, with its workloads, and curves for connections.

import { arrowKeys, element, fill, plural, shape, signal } from './dom.js';
import { closePanel, showConnection, showEnd, showPair } from './explain.js';
import { curve, placeCards, SIZE } from './layout.js';
import { cellsBetween, cellsOf, model, portText, REACH } from './model.js';

/// The most edges that are drawn at once.
const MAX_EDGES = 500;

const mapState = { open: new Set(), selected: null, filter: '', show: new Set(['policy', 'partly', 'default', 'unused']), used: null };

const KINDS = [
  ['policy', 'Allowed'],
  ['partly', 'Partly allowed'],
  ['default', 'Open, no policy'],
  ['denied', 'Denied'],
  ['unused', 'Allowed, never used'],
];

/// The view.
export function mapView(container) {
  const { overview } = model;
  if (mapState.overview !== overview) {
    Object.assign(mapState, { overview, selected: null, open: new Set(), cache: [] });
    if (overview.cells !== null) overview.namespaces.forEach((_, at) => mapState.open.add(at));
    // A recording has few denied connections: only those that were tried.
    if (!overview.hasPolicies) mapState.show.add('denied');
  }
  mapState.used = overview.used === null ? null : new Set(overview.used.map(([from, to]) => `${from} ${to}`));
  const cards = element('div', { class: 'cards' });
  const edges = shape('svg', { class: 'edges', 'aria-hidden': 'true' });
  const stage = element('div', { class: 'stage' }, cards);
  stage.prepend(edges);
  const note = element('p', { class: 'faint map-note', role: 'status' });
  const frame = element('div', { class: 'map-frame' }, stage);
  fill(container, toolbar(() => draw(frame, stage, cards, edges, note)), note, frame);
  draw(frame, stage, cards, edges, note);
}

function toolbar(redraw) {
  const filter = element('input', { type: 'search', placeholder: 'Filter namespaces and workloads', value: mapState.filter, aria: { label: 'Filter namespaces and workloads' } });
  filter.addEventListener('input', () => {
    mapState.filter = filter.value.trim();
    redraw();
  });
  const kinds = KINDS.filter(([kind]) => isKindKnown(kind)).map(([kind, text]) => {
    const box = element('input', { type: 'checkbox', checked: mapState.show.has(kind) });
    box.addEventListener('change', () => {
      if (box.checked) mapState.show.add(kind);
      else mapState.show.delete(kind);
      redraw();
    });
    return element('label', { class: `kind ${kind}` }, box, element('i', { class: 'swatch' }), text);
  });
  const table = element('button', { type: 'button', on: { click: () => signal('tab', 'matrix') } }, 'Show as a table');
  return element('div', { class: 'toolbar' }, filter, element('fieldset', { class: 'kinds' }, element('legend', { class: 'visually-hidden' }, 'Connections to draw'), kinds), element('span', { class: 'spacer' }), table);
}

/// Whether the input can have connections of a kind.
function isKindKnown(kind) {
  if (kind === 'default') return model.overview.hasPolicies;
  return kind !== 'unused' || mapState.used !== null;
}

function isShown(at) {
  const { namespaces, ends } = model.overview;
  if (mapState.filter === '') return true;
  const matches = (text) => text.includes(mapState.filter);
  return matches(namespaces[at].name) || namespaces[at].ends.some((end) => matches(ends[end].name));
}

async function draw(frame, stage, cards, edges, note) {
  const { overview } = model;
  const isOpen = (at) => mapState.open.has(at);
  const placed = placeCards(overview, isOpen, isShown, frame.clientWidth || 1200);
  const redraw = () => draw(frame, stage, cards, edges, note);
  const select = (selected) => {
    mapState.selected = selected;
    markSelected(cards);
    drawEdges(placed, edges, note);
  };
  stage.style.width = `${placed.size.width}px`;
  stage.style.height = `${placed.size.height}px`;
  edges.setAttribute('width', placed.size.width);
  edges.setAttribute('height', placed.size.height);
  fill(cards, placed.cards.map((card) => cardElement(card, select, redraw)));
  cards.onkeydown = (event) => moveFocus(event, cards);
  markSelected(cards);
  await drawEdges(placed, edges, note);
}

function moveFocus(event, cards) {
  const buttons = [...cards.querySelectorAll('button.node')];
  if (event.key === 'ArrowDown' || event.key === 'ArrowUp') arrowKeys(event, buttons, 1);
  buttons.forEach((button) => { button.tabIndex = 0; });
}

function cardElement(card, select, redraw) {
  const { namespaces, ends, hasPolicies } = model.overview;
  const namespace = namespaces[card.at];
  const only = !namespace.isNamespace;
  const about = only ? '' : [plural(namespace.ends.length, 'workload'), hasPolicies && plural(namespace.policies, 'policy')].filter(Boolean).join(', ');
  const head = element('button', {
    type: 'button', class: 'node head', data: { place: card.at },
    title: about, aria: { label: only ? namespace.name : `namespace ${namespace.name}, ${about}` },
    on: { click: () => {
      if (only) return choose(namespace.ends[0]);
      select({ place: card.at });
      showNamespace(card.at, redraw);
    } },
  }, element('span', { class: 'label' }, namespace.name),
  namespace.findings > 0 && element('span', { class: 'count warn', title: plural(namespace.findings, 'finding') }, `▲${namespace.findings}`),
  !only && element('span', { class: 'count' }, String(namespace.ends.length)));
  const choose = (end) => {
    select({ end });
    showEnd(end);
  };
  const rows = only ? [] : card.rows.map((end) => element('button', {
    type: 'button', class: 'node row', data: { end }, title: ends[end].name,
    aria: { label: hasPolicies ? `${ends[end].name}, ${isolation(ends[end])}` : ends[end].name }, on: { click: () => choose(end) },
  }, hasPolicies && element('i', { class: `lock ${ends[end].ingress ? 'in' : ''} ${ends[end].egress ? 'out' : ''}` }), element('span', { class: 'label' }, ends[end].label),
  ends[end].pods > 1 && element('span', { class: 'count' }, `×${ends[end].pods}`)));
  const more = card.hidden > 0 && element('span', { class: 'more' }, `and ${card.hidden} more`);
  const node = element('div', { class: `card ${only ? 'only' : ''}`, role: 'group', aria: { label: namespace.name } }, head, rows, more);
  node.style.transform = `translate(${card.x}px, ${card.y}px)`;
  node.style.height = `${only ? SIZE.head : card.height}px`;
  return node;
}

function isolation(end) {
  if (end.ingress && end.egress) return 'restricted in both directions';
  if (end.ingress) return 'restricted for arriving connections';
  return end.egress ? 'restricted for leaving connections' : 'not restricted';
}

function markSelected(cards) {
  const { selected } = mapState;
  for (const node of cards.querySelectorAll('.node')) {
    const is = selected !== null && (node.dataset.end === String(selected.end) || node.dataset.place === String(selected.place));
    node.classList.toggle('selected', is);
    node.setAttribute('aria-pressed', String(is));
  }
}

/// Shows a namespace: its connections to other namespaces.
function showNamespace(at, redraw) {
  const { namespaces, links, hasPolicies } = model.overview;
  const isOpen = mapState.open.has(at);
  const toggle = element('button', { type: 'button', on: { click: () => {
    if (mapState.open.has(at)) mapState.open.delete(at);
    else mapState.open.add(at);
    closePanel();
    redraw();
  } } }, isOpen ? 'Hide workloads' : 'Show workloads');
  const table = (title, rows) => element('section', {}, element('h3', {}, title), element('table', { class: 'connections' },
    element('thead', {}, element('tr', {}, ['Namespace', 'Open', 'Partly', 'Denied'].map((text) => element('th', { scope: 'col' }, text)))),
    element('tbody', {}, rows.map(([from, to, all, some, none]) => element('tr', {},
      element('td', {}, element('button', { type: 'button', class: 'link', on: { click: () => showPair(from, to) } }, namespaces[from === at ? to : from].name)),
      element('td', { class: 'number' }, String(all)), element('td', { class: 'number' }, String(some)), element('td', { class: 'number' }, String(none)))))));
  const policies = hasPolicies && element('button', { type: 'button', on: { click: () => signal('policies', namespaces[at].name) } }, plural(namespaces[at].policies, 'policy'));
  signal('panel', { heading: `Namespace ${namespaces[at].name}`, content: [element('p', { class: 'buttons' }, toggle, policies),
    table('Leaving', links.filter(([from]) => from === at)), table('Arriving', links.filter(([, to]) => to === at))] });
}

async function drawEdges(placed, edges, note) {
  const wanted = (mapState.drawing = (mapState.drawing ?? 0) + 1);
  const list = await edgeList(placed);
  if (wanted !== mapState.drawing) return;
  const shown = list.slice(0, MAX_EDGES);
  const paths = shown.flatMap((edge) => {
    const d = curve(edge.fromCard, edge.fromRow, edge.toCard, edge.toRow);
    const line = shape('path', { d, class: `edge ${edge.kind} ${edge.isFocus ? 'focus' : ''}`, 'marker-end': `url(#end-${edge.kind})` });
    if (edge.weight !== undefined) line.style.strokeWidth = String(1 + Math.min(4, Math.log10(edge.weight + 1)));
    const hit = shape('path', { d, class: 'hit', 'data-from': edge.from, 'data-to': edge.to });
    hit.append(titleOf(edge.title));
    hit.addEventListener('click', edge.open);
    hit.addEventListener('pointerenter', () => line.classList.add('hover'));
    hit.addEventListener('pointerleave', () => line.classList.remove('hover'));
    return [line, hit];
  });
  edges.replaceChildren(markers(), ...paths);
  edges.classList.toggle('has-focus', mapState.selected !== null);
  note.textContent = list.length > shown.length || list.cut ? 'There are too many connections to draw all of them: select a workload or a namespace, or use the table.' : '';
}

function titleOf(text) {
  const title = shape('title');
  title.textContent = text;
  return title;
}

function markers() {
  const definitions = shape('defs');
  for (const [kind] of KINDS) {
    const marker = shape('marker', { id: `end-${kind}`, class: `end ${kind}`, viewBox: '0 0 6 6', refX: 5.5, refY: 3, markerWidth: 6, markerHeight: 6, markerUnits: 'userSpaceOnUse', orient: 'auto' });
    marker.append(shape('path', { d: 'M0 0L6 3L0 6z' }));
    definitions.append(marker);
  }
  return definitions;
}

/// The edges to draw: those of the selection, or all if the input is small.
async function edgeList(placed) {
  const rowOf = new Map();
  const cardOf = new Map();
  for (const card of placed.cards) {
    cardOf.set(card.at, card);
    card.rows.forEach((end, row) => rowOf.set(end, [card, card.isNamespace ? row : -1]));
  }
  const { overview } = model;
  const { selected } = mapState;
  const place = (end) => rowOf.get(end) ?? [cardOf.get(overview.ends[end].namespace), -1];
  const edge = ([from, to, cell]) => {
    const [fromCard, fromRow] = place(from);
    const [toCard, toRow] = place(to);
    const kind = kindOf(from, to, cell);
    const isFocus = selected !== null && (selected.end === from || selected.end === to || selected.place === overview.ends[from].namespace || selected.place === overview.ends[to].namespace);
    const isDrawn = fromCard && toCard && (mapState.show.has(kind) || (selected?.end !== undefined && isFocus && kind === 'denied'));
    const title = `${overview.ends[from].name} → ${overview.ends[to].name}: ${REACH[cell.reach].word}, ${portText(cell)}`;
    return isDrawn && { fromCard, fromRow, toCard, toRow, from, to, kind, isFocus, title, open: () => showConnection(from, to, cell) };
  };
  if (overview.cells !== null) {
    const all = [];
    for (const from of placed.cards) {
      for (const to of placed.cards) all.push(...(await cellsBetween(from.at, to.at)).map(edge).filter(Boolean));
    }
    return all.sort((one, two) => Number(two.isFocus) - Number(one.isFocus));
  }
  if (selected?.end !== undefined) {
    const cells = await cellsOf(selected.end);
    return [...cells.out, ...cells.in].map(edge).filter(Boolean);
  }
  const links = overview.links.filter(([from, to]) => selected === null ? mapState.filter !== '' || overview.links.length <= MAX_EDGES : from === selected.place || to === selected.place);
  const list = links.map(([from, to, all, some, none]) => {
    const [fromCard, toCard] = [cardOf.get(from), cardOf.get(to)];
    const kind = all > 0 ? 'policy' : some > 0 ? 'partly' : 'denied';
    const title = `${overview.namespaces[from].name} → ${overview.namespaces[to].name}: ${all} open, ${some} partly, ${none} denied`;
    const isDrawn = fromCard && toCard && from !== to && mapState.show.has(kind);
    return isDrawn && { fromCard, fromRow: -1, toCard, toRow: -1, from, to, kind, weight: all + some, isFocus: true, title, open: () => showPair(from, to) };
  }).filter(Boolean);
  list.cut = selected === null && links.length < overview.links.length;
  return list;
}

function kindOf(from, to, cell) {
  const { ends, hasPolicies } = model.overview;
  if (cell.reach === 'none') return 'denied';
  if (!hasPolicies) return cell.reach === 'some' ? 'partly' : 'policy';
  if (mapState.used !== null && !mapState.used.has(`${from} ${to}`)) return 'unused';
  if (!ends[to].ingress && !ends[from].egress) return 'default';
  return cell.reach === 'some' ? 'partly' : 'policy';
}
