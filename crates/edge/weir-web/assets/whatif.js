// What if: the connections that a change of policies opens and closes, before it is applied.

import { ask, isStatic } from './api.js';
import { element, fill, plural } from './dom.js';
import { findingList } from './explain.js';

/// The wait after the last key before the change is evaluated.
const TYPING_PAUSE = 350;

const change = { text: '', remove: [], number: 0 };

/// Adds to the change: a text to apply, or a policy to delete.
export function addChange({ text, remove }) {
  if (text) {
    const separator = change.text.trim() === '' ? '' : '---\n';
    change.text = `${change.text.trim() === '' ? '' : `${change.text.trimEnd()}\n`}${separator}${text}`;
  }
  if (remove && !change.remove.includes(remove)) change.remove.push(remove);
}

/// The view.
export function whatIfView(container) {
  const result = element('div', { class: 'result', aria: { live: 'polite' } });
  const editor = element('textarea', { id: 'editor', spellcheck: false, value: change.text, placeholder: 'Paste or drop NetworkPolicies or ClusterNetworkPolicies here.\nA policy with the name of an existing one replaces it.' });
  const removals = element('div', {});
  const evaluate = () => compareInto(result);
  let timer = 0;
  editor.addEventListener('input', () => {
    change.text = editor.value;
    clearTimeout(timer);
    timer = setTimeout(evaluate, TYPING_PAUSE);
  });
  const drop = async (event) => {
    event.preventDefault();
    const texts = await Promise.all([...event.dataTransfer.files].map((file) => file.text()));
    texts.forEach((text) => addChange({ text }));
    editor.value = change.text;
    evaluate();
  };
  container.ondragover = (event) => event.preventDefault();
  container.ondrop = drop;
  const drawRemovals = () => fill(removals, change.remove.length > 0 && element('ul', { class: 'removals' }, change.remove.map((id) => element('li', {}, `delete ${id} `, element('button', { type: 'button', class: 'quiet', aria: { label: `Keep ${id}` }, on: { click: () => {
    change.remove = change.remove.filter((other) => other !== id);
    drawRemovals();
    evaluate();
  } } }, '✕')))));
  const clear = element('button', { type: 'button', on: { click: () => {
    Object.assign(change, { text: '', remove: [] });
    editor.value = '';
    drawRemovals();
    evaluate();
  } } }, 'Clear');
  drawRemovals();
  fill(container, element('div', { class: 'what-if' },
    element('section', { class: 'edit' }, element('div', { class: 'toolbar' }, element('label', { for: 'editor' }, 'Change'), element('span', { class: 'spacer' }), clear), removals, editor),
    element('section', { class: 'effect' }, element('h2', {}, 'Effect'), result)));
  evaluate();
}

async function compareInto(result) {
  const number = ++change.number;
  if (isStatic) return fill(result, element('p', { class: 'faint' }, 'This page has no server. Run `weir ui` to evaluate a change.'));
  if (change.text.trim() === '' && change.remove.length === 0) {
    return fill(result, element('p', { class: 'faint' }, 'Edit or drop in a policy to see which connections it opens and closes. Nothing is applied to the cluster.'));
  }
  result.setAttribute('aria-busy', 'true');
  let content;
  try {
    content = effect(await ask({ kind: 'whatIf', text: change.text, remove: change.remove }));
  } catch (error) {
    content = [element('p', { class: 'bad' }, error.message), element('p', { class: 'faint' }, error.hint ?? '')];
  }
  if (number !== change.number) return null;
  result.setAttribute('aria-busy', 'false');
  return fill(result, content);
}

function effect({ diff, lint }) {
  const { opened, closed, findings } = diff;
  const nothing = opened.length === 0 && closed.length === 0;
  return [
    nothing && element('p', { class: 'summary' }, 'No connection is opened or closed.'),
    changeTable('Opened', '+', 'good', opened), changeTable('Closed', '−', 'bad', closed),
    findingList(findings, 'Findings from reading the change'), findingList(lint, 'New findings'),
  ];
}

function changeTable(title, sign, kind, entries) {
  if (entries.length === 0) return null;
  const words = (list) => (list.length > 6 ? `${list.slice(0, 6).join(', ')} and ${list.length - 6} more` : list.join(', '));
  return element('table', { class: `list changes ${kind}` }, element('caption', {}, `${title}: ${plural(entries.length, 'group')} of connections`),
    element('thead', {}, element('tr', {}, ['', 'From', 'To', 'Ports'].map((text) => element('th', { scope: 'col' }, text || element('span', { class: 'visually-hidden' }, 'Change'))))),
    element('tbody', {}, entries.slice(0, 300).map((entry) => element('tr', {}, element('td', { class: kind }, sign, element('span', { class: 'visually-hidden' }, title)), element('td', {}, words(entry.from)), element('td', {}, words(entry.to)), element('td', {}, `${words(entry.ports)}${entry.family ? ` (${entry.family} only)` : ''}`)))));
}
