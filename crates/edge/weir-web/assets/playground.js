// The manifests of a page without a server: paste, drop, share.

import { ask } from './api.js';
import { copyButton, element, fill, plural, signal } from './dom.js';
import { findingList } from './explain.js';
import { linkTo, linkedText } from './link.js';
import { policyList } from './model.js';

/// The wait after the last key before the manifests are read.
const READING_PAUSE = 350;

const manifests = { text: '', number: 0, failure: null };

/// Takes over the manifests of the address. The view then reads them, and shows their problems.
export async function openLinked() {
  Object.assign(manifests, { text: '', failure: null });
  try {
    manifests.text = (await linkedText()) ?? '';
  } catch (error) {
    manifests.failure = error;
  }
  return ask({ kind: 'open', text: '' });
}

/// The view.
export function inputView(container) {
  const result = element('div', { class: 'result', aria: { live: 'polite' } });
  const editor = element('textarea', { id: 'manifests', spellcheck: false, value: manifests.text, placeholder: 'Paste or drop manifests here: pods or workloads, namespaces, Services and policies.' });
  const shared = element('div', {});
  const setText = (text) => {
    Object.assign(manifests, { text, failure: null });
    editor.value = text;
    fill(shared);
    return readInto(result);
  };
  let timer = 0;
  editor.addEventListener('input', () => {
    Object.assign(manifests, { text: editor.value, failure: null });
    fill(shared);
    clearTimeout(timer);
    timer = setTimeout(() => readInto(result), READING_PAUSE);
  });
  container.ondragover = (event) => event.preventDefault();
  container.ondrop = async (event) => {
    event.preventDefault();
    const files = await Promise.all([...event.dataTransfer.files].map(async (file) => `# ${file.name}\n${(await file.text()).trimEnd()}\n`));
    setText([manifests.text.trim() === '' ? [] : `${manifests.text.trimEnd()}\n`, files].flat().join('---\n'));
  };
  const share = element('button', { type: 'button', on: { click: async () => {
    const link = await linkTo(manifests.text);
    history.replaceState(null, '', link);
    fill(shared, element('div', { class: 'toolbar' }, element('input', { id: 'link', readOnly: true, value: link, aria: { label: 'Link to these manifests' } }), copyButton(link)));
    document.getElementById('link').select();
  } } }, 'Share');
  const example = globalThis.weirExample !== undefined && element('button', { type: 'button', on: { click: () => setText(globalThis.weirExample) } }, 'Example');
  const clear = element('button', { type: 'button', on: { click: () => setText('') } }, 'Clear');
  fill(container, element('div', { class: 'what-if' },
    element('section', { class: 'edit' }, element('div', { class: 'toolbar' }, element('label', { for: 'manifests' }, 'Manifests'), element('span', { class: 'spacer' }), example, clear, share), shared, editor),
    element('section', { class: 'effect' }, element('h2', {}, 'Input'), result)));
  return readInto(result);
}

async function readInto(result) {
  const number = ++manifests.number;
  let content;
  try {
    if (manifests.failure !== null) throw manifests.failure;
    const overview = await ask({ kind: 'open', text: manifests.text });
    signal('overview', overview);
    content = await summary(overview);
  } catch (error) {
    content = [element('p', { class: 'bad' }, error.message), element('p', { class: 'faint' }, error.hint ?? '')];
  }
  if (number === manifests.number) fill(result, content);
}

async function summary({ counts }) {
  if (manifests.text.trim() === '') {
    return [element('p', { class: 'faint' }, 'The manifests stay in this browser: the page has no server. Share puts them into the address, behind the #, which a browser does not send.')];
  }
  const words = [plural(counts.workloads, 'workload'), plural(counts.pods, 'pod'), plural(counts.policies, 'policy')];
  const { lint } = await policyList();
  return [
    element('p', { class: 'summary' }, words.join(', ')),
    counts.workloads > 0 && element('p', {}, element('button', { type: 'button', on: { click: () => signal('tab', 'map') } }, 'Show the map')),
    findingList(lint.findings, 'Findings'),
  ];
}
