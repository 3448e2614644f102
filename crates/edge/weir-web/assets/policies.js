// The policies and the findings about them.

import { ask } from './api.js';
import { codeBlock, element, fill, plural, signal } from './dom.js';
import { findingList, openPanel } from './explain.js';
import { policyList } from './model.js';

/// The number of rows that are added at a time.
const PAGE = 200;

const policyState = { filter: '', only: false, limit: PAGE };

/// The view. `filter` replaces the current one, if it is given.
export async function policiesView(container, filter) {
  if (filter !== undefined) Object.assign(policyState, { filter, only: false, limit: PAGE });
  const { policies, lint } = await policyList();
  const search = element('input', { type: 'search', placeholder: 'Filter policies', value: policyState.filter, aria: { label: 'Filter policies' } });
  const only = element('input', { type: 'checkbox', checked: policyState.only });
  const list = element('div', { class: 'pad' });
  const redraw = () => {
    Object.assign(policyState, { filter: search.value.trim(), only: only.checked });
    drawPolicies(list, policies, lint);
  };
  search.addEventListener('input', redraw);
  only.addEventListener('change', redraw);
  fill(container, element('div', { class: 'toolbar' }, search, element('label', {}, only, ' Only with findings')), list);
  redraw();
}

function drawPolicies(list, policies, lint) {
  const matches = (policy) => policy.id.includes(policyState.filter) && (!policyState.only || policy.findings > 0);
  const found = policies.filter(matches);
  const shown = found.slice(0, policyState.limit);
  const rows = shown.map((policy) => element('tr', {},
    element('th', { scope: 'row' }, element('button', { type: 'button', class: 'link', on: { click: () => showPolicy(policy.id) } }, policy.namespace ? `${policy.namespace}/${policy.name}` : policy.name)),
    element('td', {}, policy.kind, policy.tier !== 'namespace' && element('span', { class: 'faint' }, ` ${policy.tier}`)),
    element('td', {}, policy.directions.join(', ')),
    element('td', { class: 'number' }, String(policy.rules)),
    element('td', { class: `number ${policy.pods === 0 ? 'bad' : ''}` }, String(policy.pods)),
    element('td', { class: 'number' }, policy.findings > 0 && element('span', { class: 'count warn' }, `▲${policy.findings}`)),
    element('td', { class: 'faint' }, policy.place ?? '')));
  const more = found.length > shown.length && element('button', { type: 'button', on: { click: () => {
    policyState.limit += PAGE;
    drawPolicies(list, policies, lint);
  } } }, `Show more of ${plural(found.length, 'policy')}`);
  const findings = lint.findings.filter((finding) => policyState.filter === '' || finding.object.includes(policyState.filter)).slice(0, PAGE);
  fill(list, element('table', { class: 'list' }, element('caption', {}, plural(found.length, 'policy')),
    element('thead', {}, element('tr', {}, ['Policy', 'Kind', 'Directions', 'Rules', 'Pods', 'Findings', 'Location'].map((text) => element('th', { scope: 'col' }, text)))), element('tbody', {}, rows)), more,
  findingList(findings, `${plural(lint.findings.length, 'finding')} in the whole input`));
}

/// Shows one policy in the panel.
export async function showPolicy(id) {
  const policy = await ask({ kind: 'policy', id });
  const buttons = element('p', { class: 'buttons' },
    element('button', { type: 'button', class: 'primary', on: { click: () => signal('whatIf', { text: policy.manifest }) } }, 'Edit in what-if'),
    element('button', { type: 'button', on: { click: () => signal('whatIf', { remove: id }) } }, 'What if it were deleted?'));
  const shown = policy.pods.length < policy.podCount ? ` The first ${policy.pods.length}:` : '';
  openPanel(id, policy.place && element('p', { class: 'faint' }, element('code', { class: 'place' }, policy.place)), buttons,
    findingList(policy.findings, 'Findings'), codeBlock('Manifest', policy.manifest),
    element('h3', {}, `Selects ${plural(policy.podCount, 'pod')}.${shown}`), element('ul', { class: 'pods' }, policy.pods.map((pod) => element('li', {}, pod))));
}
