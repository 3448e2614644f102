// The panel: why a connection is allowed or denied, and the smallest policy that allows it.

import { ask } from './api.js';
import { codeBlock, copyButton, element, fill, plural, signal } from './dom.js';
import { cellsBetween, cellsOf, model, portText, REACH } from './model.js';

const panel = document.getElementById('panel');
let opener = null;
let latest = 0;

/// Opens the panel with a heading, and moves the focus there.
export function openPanel(heading, ...content) {
  if (panel.hidden || !panel.contains(document.activeElement)) opener = document.activeElement;
  const title = element('h2', { tabIndex: -1 }, heading);
  const close = element('button', { type: 'button', class: 'quiet', title: 'Close (Escape)', aria: { label: 'Close details' }, on: { click: closePanel } }, '✕');
  fill(panel, element('div', { class: 'panel-head' }, title, close), ...content);
  panel.hidden = false;
  title.focus({ preventScroll: true });
  panel.scrollTop = 0;
}

/// Closes the panel, and returns the focus to the element that opened it.
export function closePanel() {
  if (panel.hidden) return;
  panel.hidden = true;
  if (opener?.isConnected) opener.focus();
  signal('panelClosed');
}

/// Shows one connection: its ports, and the explanation of one of them.
export function showConnection(from, to, cell) {
  const { ends, hasPolicies } = model.overview;
  if (!hasPolicies) {
    signal('observed', [from, to]);
    return;
  }
  const result = element('div', { class: 'explanation', aria: { live: 'polite' } });
  const buttons = cell.ports.map((port) => element('button', {
    type: 'button', class: `port ${port.open}`, aria: { pressed: 'false' },
    on: { click: () => choose(port) },
  }, `${PORT_SIGNS[port.open]} ${port.name}`));
  const outside = outsideChoice(from, to, () => choose(chosen));
  let chosen = cell.ports[0];
  function choose(port) {
    chosen = port;
    buttons.forEach((button, at) => button.setAttribute('aria-pressed', String(cell.ports[at] === port)));
    explainInto(result, outside.text(from), outside.text(to), port.ask);
  }
  openPanel([name(ends[from]), element('span', { class: 'arrow' }, ' → '), name(ends[to])],
    element('p', { class: `reach ${cell.reach}` }, `${REACH[cell.reach].sign} ${REACH[cell.reach].word}`, element('span', { class: 'faint' }, ` · ${portText(cell)}`)),
    buttons.length > 1 && element('div', { class: 'ports', role: 'group', aria: { label: 'Port to explain' } }, buttons),
    outside.control, result);
  if (chosen) choose(chosen);
  else fill(result, element('p', { class: 'faint' }, 'There is no port to explain.'));
}

const PORT_SIGNS = { yes: '✓', no: '✗', partly: '◐', other: '✓' };

/// The name of a row, with its namespace and kind in another colour.
export function name(end) {
  const parts = end.name.split('/');
  return element('span', {}, parts.length > 1 && element('span', { class: 'faint' }, `${parts.slice(0, -1).join('/')}/`), parts.at(-1));
}

/// The choice of an address, if one end is outside the cluster and rules distinguish addresses.
function outsideChoice(from, to, changed) {
  const { ends, outside, namespaces } = model.overview;
  const isOutside = (end) => !namespaces[ends[end].namespace].isNamespace && ends[end].ask !== 'ingress';
  const hasChoice = (isOutside(from) || isOutside(to)) && outside.length > 1;
  const select = element('select', { id: 'outside' }, outside.map(({ name: text, address }) => element('option', { value: address }, text)));
  select.addEventListener('change', changed);
  return {
    text: (end) => (hasChoice && isOutside(end) ? select.value : ends[end].ask),
    control: hasChoice && element('p', {}, element('label', { for: 'outside' }, 'Addresses outside the cluster: '), select),
  };
}

/// Asks for an explanation and draws it. A later question replaces an earlier one.
export async function explainInto(target, from, to, port) {
  const number = ++latest;
  target.setAttribute('aria-busy', 'true');
  let content;
  try {
    content = explanation(await ask({ kind: 'explain', from, to, port }));
  } catch (error) {
    content = [element('p', { class: 'bad' }, error.message), element('p', { class: 'faint' }, error.hint ?? '')];
  }
  if (number !== latest) return;
  fill(target, content);
  target.setAttribute('aria-busy', 'false');
}

function explanation(view) {
  const denied = view.verdict !== 'allow';
  const command = `weir explain --from ${view.from} --to ${view.to} --port ${view.port}/${view.protocol}`;
  return [
    element('p', { class: 'verdict' }, element('strong', { class: denied ? 'badge bad' : 'badge good' }, denied ? 'denied' : 'allowed'), ` ${view.port}/${view.protocol} from ${view.from} to ${view.to}`),
    sideCard('Leaving', view.egress, 'to'),
    sideCard('Arriving', view.ingress, 'from'),
    view.remedy && remedyCard(view.remedy),
    findingList(view.findings, 'Findings about these policies'),
    view.notes?.length > 0 && element('ul', { class: 'notes' }, view.notes.map((note) => element('li', {}, note))),
    element('p', { class: 'command' }, element('code', {}, command), copyButton(command)),
  ];
}

function sideCard(title, side, word) {
  const verdict = side.verdict === 'allow' ? 'good' : 'bad';
  return element('section', { class: `side ${verdict}` },
    element('h3', {}, `${title} `, element('span', { class: 'faint' }, `${side.pod ?? 'outside'} · ${side.address}${side.madeUp ? ' (synthetic)' : ''}`)),
    !side.rule && element('p', {}, side.reason === 'isolated' ? 'isolated, and no rule matches' : side.why),
    side.rule && ruleLine(side.rule, word),
    side.passed && element('p', {}, 'passed by ', ruleLine(side.passed, word)),
    side.isolatedBy.length > 0 && element('div', {}, element('h4', {}, 'Isolated by'), element('ul', {}, side.isolatedBy.map((policy) => element('li', {}, policyLink(policy.policy), place(policy.place), policy.madeFor && ` created for ${policy.madeFor}`)))),
    side.nearest.length > 0 && element('div', {}, element('h4', {}, 'Nearest rules'), element('ul', {}, side.nearest.slice(0, 5).map((miss) => element('li', {}, ruleLine(miss, word), element('span', { class: 'faint' }, ` ${miss.why}`))))));
}

function ruleLine(rule, word) {
  return element('span', { class: 'rule' }, policyLink(rule.policy), ` ${rule.rule}`, place(rule.place), element('br'), element('span', {}, `${rule.action} ${word} ${rule.peers}${rule.ports ? `, ${rule.ports}` : ''}`));
}

function policyLink(id) {
  return element('button', { type: 'button', class: 'link', on: { click: () => signal('policy', id) } }, id);
}

function place(text) {
  return text && element('code', { class: 'place' }, text);
}

function remedyCard(remedy) {
  const policies = (remedy.add ?? []).join('---\n');
  const tryIt = element('button', { type: 'button', class: 'primary', on: { click: () => signal('whatIf', { text: policies }) } }, 'Try it');
  return element('section', { class: 'remedy' }, element('h3', {}, 'Smallest fix'),
    remedy.change && element('p', {}, 'No added policy can override this rule; change it: ', ruleLine(remedy.change, '')),
    remedy.note && element('p', {}, remedy.note),
    policies !== '' && codeBlock('Policy to add', policies, tryIt));
}

/// Findings as a list, with their location and hint.
export function findingList(findings, title) {
  if (!findings?.length) return null;
  return element('section', { class: 'findings' }, element('h3', {}, title), element('ul', {}, findings.map((finding) => element('li', { class: finding.severity },
    element('strong', {}, finding.severity), ` ${finding.message} `, element('span', { class: 'faint' }, `[${finding.code}]`),
    finding.file && place(`${finding.file}:${finding.line}`), finding.hint && element('div', { class: 'faint' }, finding.hint)))));
}

/// Shows a workload: whether policies restrict it, and its connections.
export async function showEnd(end) {
  const { ends } = model.overview;
  const list = element('div', { aria: { busy: 'true' } }, element('p', { class: 'faint' }, 'Loading …'));
  const restricted = (is) => (is ? 'restricted by policies' : 'open: no policy applies');
  const info = ends[end];
  openPanel(name(info), info.pods > 0 && element('dl', {},
    element('dt', {}, 'Pods'), element('dd', {}, String(info.pods)),
    element('dt', {}, 'Arriving'), element('dd', {}, restricted(info.ingress)),
    element('dt', {}, 'Leaving'), element('dd', {}, restricted(info.egress))), list);
  const cells = await cellsOf(end);
  fill(list, connectionTable('Leaving', cells.out.map(([, to, cell]) => [end, to, cell, to])),
    connectionTable('Arriving', cells.in.map(([from, , cell]) => [from, end, cell, from])));
  list.setAttribute('aria-busy', 'false');
}

/// Shows two namespaces: the connections between their workloads.
export async function showPair(from, to) {
  const { namespaces } = model.overview;
  const list = element('div', {}, element('p', { class: 'faint' }, 'Loading …'));
  openPanel([namespaces[from].name, element('span', { class: 'arrow' }, ' → '), namespaces[to].name], list);
  const cells = await cellsBetween(from, to);
  fill(list, connectionTable('Connections', cells.map(([source, target, cell]) => [source, target, cell, null])));
}

const MAX_CONNECTIONS = 300;

/// A table of connections; a button in each row opens the explanation.
function connectionTable(title, rows) {
  const { ends } = model.overview;
  const order = { all: 0, some: 1, notJudged: 2, none: 3 };
  const sorted = [...rows].sort((one, two) => order[one[2].reach] - order[two[2].reach]);
  const shown = sorted.slice(0, MAX_CONNECTIONS);
  const open = rows.filter(([, , cell]) => cell.reach !== 'none').length;
  return element('section', {}, element('h3', {}, `${title} `, element('span', { class: 'faint' }, `${open} of ${plural(rows.length, 'connection')} open`)),
    element('table', { class: 'connections' }, element('caption', { class: 'visually-hidden' }, title),
      element('thead', {}, element('tr', {}, ['', 'Workload', 'Ports'].map((text) => element('th', { scope: 'col' }, text || element('span', { class: 'visually-hidden' }, 'Verdict'))))),
      element('tbody', {}, shown.map(([from, to, cell, other]) => element('tr', {},
        element('td', { class: cell.reach, title: REACH[cell.reach].word }, REACH[cell.reach].sign, element('span', { class: 'visually-hidden' }, REACH[cell.reach].word)),
        element('td', {}, element('button', { type: 'button', class: 'link', on: { click: () => showConnection(from, to, cell) } }, other === null ? `${ends[from].label} → ${ends[to].label}` : ends[other].name)),
        element('td', { class: 'faint' }, portText(cell)))))),
    rows.length > shown.length && element('p', { class: 'faint' }, `and ${rows.length - shown.length} more`));
}
