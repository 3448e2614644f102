// The dropped packets, as they arrive.

import { element } from './dom.js';
import { explainInto, openPanel } from './explain.js';
import { liveList, liveView, timeCell } from './live.js';

const dropList = liveList('drops', 'drop');

const DROP_TABLE = {
  choiceLabel: 'Direction',
  choices: [['', 'Both directions'], ['ingress', 'Ingress'], ['egress', 'Egress']],
  columns: ['Time', 'From', 'To', 'Port', 'Direction', 'Decided by', 'Node'],
  missing: () => element('p', { class: 'faint' }, 'No agents are followed. Start ', element('code', {}, 'weir ui --live'), ' to see dropped packets as they happen.'),
  entries: ({ drops }) => drops.map((drop) => [[drop.time, drop.node, drop.number].join(' '), drop]),
  text: (drop) => `${sourceOf(drop)} ${targetOf(drop)} ${drop.node ?? ''} ${drop.policies.join(' ')}`,
  time: ({ time, number }) => `${time} ${String(number).padStart(12, '0')}`,
  choice: ({ direction }) => direction,
  row: (drop) => [
    timeCell(drop.time), element('td', {}, sourceOf(drop)), element('td', {}, targetOf(drop)),
    element('td', {}, element('button', { type: 'button', class: 'link', aria: { label: `Explain ${sourceOf(drop)} to ${targetOf(drop)} ${dropPort(drop)} at ${drop.time}` }, on: { click: () => explainDrop(drop) } }, dropPort(drop))),
    element('td', {}, drop.direction, drop.passed && element('span', { class: 'some' }, ' (passed: audit)')),
    element('td', {}, drop.policies.join(', '), drop.morePolicies > 0 && ` and ${drop.morePolicies} more`), element('td', { class: 'faint' }, drop.node ?? ''),
  ],
};

/// The view.
export function dropsView(container) {
  return liveView(container, dropList, DROP_TABLE);
}

function sourceOf(drop) {
  return drop.fromPod ?? drop.from;
}

function targetOf(drop) {
  return drop.toPod ?? drop.to;
}

function dropPort({ toPort, protocol }) {
  return toPort === undefined || toPort === null ? protocol : `${toPort}/${protocol}`;
}

/// Explains a dropped packet with the policies of the input.
function explainDrop(drop) {
  const result = element('div', { class: 'explanation', aria: { live: 'polite' } });
  const word = drop.passed ? 'would have been dropped (audit)' : 'dropped';
  openPanel(`${sourceOf(drop)} → ${targetOf(drop)}`, element('p', { class: 'faint' }, `Observed: ${word} at ${drop.time}. With the policies of the input:`), result);
  explainInto(result, sourceOf(drop), targetOf(drop), dropPort(drop));
}
