// The observed flows, as they arrive.

import { element, fill, plural } from './dom.js';
import { explainInto, name, openPanel } from './explain.js';
import { forget, liveList, liveView, readEntries, timeCell } from './live.js';
import { model } from './model.js';

const flowList = liveList('flows', 'flow');
const VERDICTS = { allow: ['good', 'allowed'], deny: ['bad', 'denied'], audit: ['some', 'audit'] };

const FLOW_TABLE = {
  choiceLabel: 'Verdict',
  choices: [['', 'All verdicts'], ['allow', 'Allowed'], ['deny', 'Denied'], ['audit', 'Audit']],
  columns: ['Verdict', 'From', 'To', 'Port', 'Connections', 'Decided by', 'Last seen'],
  missing: () => element('p', { class: 'faint' }, 'No flows were given. Start ', element('code', {}, 'weir ui --live'), ' to follow the agents of a cluster, or give a recording with ', element('code', {}, '--flows FILE'), '.'),
  entries: ({ flows }) => flows.map((flow) => [[flow.from, flow.to, flow.record.protocol, flow.record.port, flow.record.verdict, flow.record.node].join(' '), flow]),
  text: ({ from, to, policies }) => `${from} ${to} ${policies.join(' ')}`,
  time: ({ record }) => record.lastSeen,
  choice: ({ record }) => record.verdict,
  row: (flow) => {
    const [kind, word] = VERDICTS[flow.record.verdict];
    return [
      element('td', { class: kind }, word), element('td', {}, flow.from), element('td', {}, flow.to),
      element('td', {}, element('button', { type: 'button', class: 'link', aria: { label: `Explain ${flow.from} to ${flow.to} ${portOf(flow)}` }, on: { click: () => explainFlow(flow) } }, portOf(flow))),
      element('td', { class: 'number' }, `${leastOf(flow)}${flow.record.connections.toLocaleString('en')}`),
      element('td', {}, flow.policies.join(', ')), timeCell(flow.record.lastSeen),
    ];
  },
};

/// The view.
export function flowsView(container) {
  return liveView(container, flowList, FLOW_TABLE);
}

function portOf({ record }) {
  return record.port === undefined ? record.protocol : `${record.port}/${record.protocol}`;
}

/// The words before a number that can be too small.
function leastOf({ record }) {
  return record.sampling.complete ? '' : 'at least ';
}

/// The number of connections, or of denied packets, of a flow.
function countOf(flow) {
  const { verdict, connections } = flow.record;
  return `${leastOf(flow)}${plural(connections, verdict === 'deny' ? 'packet' : 'connection')}`;
}

/// The most flows of a connection that the panel lists.
const MAX_OBSERVED = 100;

/// Shows the flows of one connection of a recording, which has no policies to explain it.
export async function showObserved([from, to]) {
  const { ends } = model.overview;
  const list = element('div', { class: 'explanation', aria: { busy: 'true', live: 'polite' } });
  openPanel([name(ends[from]), element('span', { class: 'arrow' }, ' → '), name(ends[to])], list);
  const flows = (await readEntries(flowList, FLOW_TABLE)).filter((flow) => flow.ends[0] === from && flow.ends[1] === to);
  flows.sort((one, two) => (one.record.lastSeen < two.record.lastSeen ? 1 : -1));
  fill(list, flows.slice(0, MAX_OBSERVED).map(observedCard), flows.length > MAX_OBSERVED && element('p', { class: 'faint' }, `and ${plural(flows.length - MAX_OBSERVED, 'flow')} more: see the view Flows`));
  list.setAttribute('aria-busy', 'false');
}

/// One observed flow, and the policies that decided according to its agent.
function observedCard(flow) {
  const [kind, word] = VERDICTS[flow.record.verdict];
  return element('section', { class: `side ${kind}` },
    element('h3', {}, `${word} ${portOf(flow)} `, element('span', { class: 'faint' }, `${flow.from} → ${flow.to}`)),
    element('p', {}, `${countOf(flow)}, last ${flow.record.lastSeen.slice(0, 19).replace('T', ' ')}, on node ${flow.record.node}`),
    flow.policies.length > 0 && element('ul', {}, flow.policies.map((policy) => element('li', {}, policy))));
}

/// Explains a flow with the policies of the input.
function explainFlow(flow) {
  const { ends, hasPolicies } = model.overview;
  if (!hasPolicies) {
    openPanel(`${flow.from} → ${flow.to}`, element('div', { class: 'explanation' }, observedCard(flow)));
    return;
  }
  const text = (at) => flow.record[at === 0 ? 'from' : 'to'].address ?? ends[flow.ends[at]]?.ask;
  const result = element('div', { class: 'explanation', aria: { live: 'polite' } });
  openPanel(`${flow.from} → ${flow.to}`, element('p', { class: 'faint' }, `Observed: ${flow.record.verdict}, ${countOf(flow)}. With the policies of the input:`), result);
  if (text(0) === undefined || text(1) === undefined) {
    fill(result, element('p', { class: 'bad' }, 'The input has no such workload.'));
    return;
  }
  explainInto(result, text(0), text(1), portOf(flow));
}

/// Forgets the flows, after the input was read again.
export function forgetFlows() {
  forget(flowList);
}
