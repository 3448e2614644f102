// The observed flows, as they arrive.

import { ask, isStatic } from './api.js';
import { element, fill, plural } from './dom.js';
import { explainInto, openPanel } from './explain.js';
import { model } from './model.js';

/// The time between two requests for new flows.
const POLL_INTERVAL = 1000;
/// The most rows of the table.
const MAX_SHOWN = 300;

const flowState = { flows: new Map(), last: 0, filter: '', verdict: '', paused: false, timer: 0 };

/// The view.
export async function flowsView(container) {
  clearTimeout(flowState.timer);
  const filter = element('input', { type: 'search', placeholder: 'Filter flows', value: flowState.filter, aria: { label: 'Filter flows' } });
  const verdict = element('select', { aria: { label: 'Verdict' } }, [['', 'All verdicts'], ['allow', 'Allowed'], ['deny', 'Denied'], ['audit', 'Audit']].map(([value, text]) => element('option', { value }, text)));
  verdict.value = flowState.verdict;
  const pause = element('button', { type: 'button', aria: { pressed: String(flowState.paused) } }, 'Pause');
  const list = element('div', { class: 'pad' });
  const state = element('span', { class: 'faint', role: 'status' });
  filter.addEventListener('input', () => { flowState.filter = filter.value.trim(); drawFlows(list); });
  verdict.addEventListener('change', () => { flowState.verdict = verdict.value; drawFlows(list); });
  pause.addEventListener('click', () => {
    flowState.paused = !flowState.paused;
    pause.setAttribute('aria-pressed', String(flowState.paused));
    if (!flowState.paused) update(list, state);
  });
  fill(container, element('div', { class: 'toolbar' }, filter, verdict, pause, element('span', { class: 'spacer' }), state), list);
  await update(list, state);
}

/// Reads new flows, and continues while the view is shown and further flows can follow.
async function update(list, state) {
  clearTimeout(flowState.timer);
  const answer = await ask({ kind: 'flows', after: isStatic ? 0 : flowState.last });
  if (!answer.available) {
    fill(list, element('p', { class: 'faint' }, 'No flows were given. Start ', element('code', {}, 'weir flows -o json --follow | weir ui --flows -'), ', or give a recording with ', element('code', {}, '--flows FILE'), '.'));
    return;
  }
  for (const flow of answer.flows) {
    const { node, protocol, port, verdict } = flow.record;
    flowState.flows.set([flow.from, flow.to, protocol, port, verdict, node].join(' '), flow);
  }
  flowState.last = answer.last;
  const words = [answer.isLive ? 'live' : 'recording', plural(flowState.flows.size, 'flow'), answer.leftOut > 0 && `${answer.leftOut} left out`, answer.wrongLines > 0 && plural(answer.wrongLines, 'wrong line')];
  state.textContent = words.filter(Boolean).join(' · ');
  if (answer.flows.length > 0 || list.childElementCount === 0) drawFlows(list);
  const isOver = isStatic || flowState.paused || (!answer.isLive && !answer.more);
  if (!isOver && list.isConnected) flowState.timer = setTimeout(() => { if (list.isConnected) update(list, state).catch(() => {}); }, answer.more ? 0 : POLL_INTERVAL);
}

function drawFlows(list) {
  const { filter, verdict } = flowState;
  const matches = ({ from, to, policies, record }) => (verdict === '' || record.verdict === verdict) && `${from} ${to} ${policies.join(' ')}`.includes(filter);
  const found = [...flowState.flows.values()].filter(matches).sort((one, two) => (one.record.lastSeen < two.record.lastSeen ? 1 : -1));
  const kinds = { allow: 'good', deny: 'bad', audit: 'some' };
  const words = { allow: 'allowed', deny: 'denied', audit: 'audit' };
  const rows = found.slice(0, MAX_SHOWN).map((flow) => element('tr', {},
    element('td', { class: kinds[flow.record.verdict] }, words[flow.record.verdict]),
    element('td', {}, flow.from), element('td', {}, flow.to),
    element('td', {}, element('button', { type: 'button', class: 'link', aria: { label: `Explain ${flow.from} to ${flow.to} ${portOf(flow)}` }, on: { click: () => explainFlow(flow) } }, portOf(flow))),
    element('td', { class: 'number' }, flow.record.connections.toLocaleString('en')),
    element('td', {}, flow.policies.join(', ')), element('td', { class: 'faint' }, flow.record.lastSeen.slice(0, 19).replace('T', ' '))));
  fill(list, element('table', { class: 'list flows' }, element('caption', {}, plural(found.length, 'flow')),
    element('thead', {}, element('tr', {}, ['Verdict', 'From', 'To', 'Port', 'Connections', 'Decided by', 'Last seen'].map((text) => element('th', { scope: 'col' }, text)))), element('tbody', {}, rows)),
  found.length > rows.length && element('p', { class: 'faint' }, `The table shows the last ${rows.length}.`));
}

function portOf({ record }) {
  return record.port === undefined ? record.protocol : `${record.port}/${record.protocol}`;
}

/// Explains a flow with the policies of the input.
function explainFlow(flow) {
  const { ends } = model.overview;
  const text = (at) => flow.record[at === 0 ? 'from' : 'to'].address ?? ends[flow.ends[at]]?.ask;
  const result = element('div', { class: 'explanation', aria: { live: 'polite' } });
  openPanel(`${flow.from} → ${flow.to}`, element('p', { class: 'faint' }, `Observed: ${flow.record.verdict}, ${plural(flow.record.connections, 'connection')}. With the policies of the input:`), result);
  if (text(0) === undefined || text(1) === undefined) {
    fill(result, element('p', { class: 'bad' }, 'The input has no such workload.'));
    return;
  }
  explainInto(result, text(0), text(1), portOf(flow));
}

/// Forgets the flows, after the input was read again.
export function forgetFlows() {
  Object.assign(flowState, { flows: new Map(), last: 0 });
}
