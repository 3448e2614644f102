// The page: tabs, theme, and the events between views.

import { ask, isPlayground, isStatic } from './api.js';
import { arrowKeys, element, fill, onSignal, plural } from './dom.js';
import { closePanel, openPanel } from './explain.js';
import { mapView } from './map.js';
import { matrixView } from './matrix.js';
import { model, setOverview } from './model.js';
import { policiesView, showPolicy } from './policies.js';
import { addChange, whatIfView } from './whatif.js';
import { flowsView, forgetFlows, showObserved } from './flows.js';
import { dropsView } from './drops.js';
import { hasLinkedText } from './link.js';
import { inputView, openLinked } from './playground.js';

const TABS = [
  isPlayground && { id: 'input', title: 'Manifests', show: inputView },
  { id: 'map', title: 'Map', show: mapView },
  { id: 'matrix', title: 'Matrix', show: matrixView },
  { id: 'policies', title: 'Policies', show: policiesView, needsPolicies: true },
  { id: 'whatif', title: 'What if', show: whatIfView, needsPolicies: true },
  !isPlayground && { id: 'flows', title: 'Flows', show: flowsView },
  !isPlayground && { id: 'drops', title: 'Drops', show: dropsView },
].filter(Boolean);

const [viewNode, tabList, message] = ['view', 'tabs', 'message'].map((id) => document.getElementById(id));
let current = TABS[0].id;

/// Shows a tab. `detail` goes to its view.
async function showTab(id, detail) {
  current = id;
  for (const button of tabList.children) {
    const isCurrent = button.id === `tab-${id}`;
    button.setAttribute('aria-selected', String(isCurrent));
    button.tabIndex = isCurrent ? 0 : -1;
  }
  viewNode.setAttribute('aria-labelledby', `tab-${id}`);
  viewNode.setAttribute('aria-busy', 'true');
  viewNode.dataset.view = id;
  viewNode.ondrop = null;
  viewNode.ondragover = null;
  await attempt(() => TABS.find((tab) => tab.id === id).show(viewNode, detail));
  viewNode.setAttribute('aria-busy', 'false');
}

/// Runs an action, and shows its error.
async function attempt(action) {
  try {
    await action();
    message.hidden = true;
  } catch (error) {
    fill(message, element('strong', {}, error.message), error.hint ? ` ${error.hint}` : '');
    message.hidden = false;
  }
}

function drawTabs() {
  fill(tabList, TABS.map((tab) => element('button', { type: 'button', role: 'tab', id: `tab-${tab.id}`, aria: { controls: 'view', selected: 'false' }, on: { click: () => showTab(tab.id) } }, tab.title)));
  tabList.addEventListener('keydown', (event) => {
    arrowKeys(event, [...tabList.children].filter((tab) => !tab.hidden), TABS.length);
    if (event.key.startsWith('Arrow')) document.activeElement.click();
  });
}

/// Draws the overview in the header and the footer.
function showSummary(overview) {
  setOverview(overview);
  forgetFlows();
  const { counts, title, version, hasPolicies, notice } = overview;
  document.title = `${title} · weir`;
  document.getElementById('source').textContent = title;
  document.getElementById('notice').textContent = notice ?? '';
  document.getElementById('notice').hidden = notice === undefined;
  for (const tab of TABS.filter(({ needsPolicies }) => needsPolicies)) document.getElementById(`tab-${tab.id}`).hidden = !hasPolicies;
  const words = [plural(counts.namespaces, 'namespace'), plural(counts.workloads, 'workload'), hasPolicies && plural(counts.pods, 'pod'), hasPolicies && plural(counts.policies, 'policy'),
    counts.errors > 0 && plural(counts.errors, 'error'), counts.warnings > 0 && plural(counts.warnings, 'warning')].filter(Boolean);
  fill(document.getElementById('status'), element('span', {}, words.join(' · ')), overview.notes.map((note) => element('span', { class: 'faint' }, note)), element('span', { class: 'spacer' }), element('span', { class: 'faint' }, `weir ${version}`));
}

/// Draws the overview, and the current tab again.
async function showOverview(overview) {
  showSummary(overview);
  await showTab(current);
}

function setUpTheme() {
  const button = document.getElementById('theme');
  const prefersDark = matchMedia('(prefers-color-scheme: dark)');
  let chosen = null;
  try {
    chosen = localStorage.getItem('weir-theme');
  } catch {
    // A page from a file may have no storage.
  }
  const apply = () => {
    const isDark = chosen === null ? prefersDark.matches : chosen === 'dark';
    document.documentElement.dataset.theme = isDark ? 'dark' : 'light';
    button.setAttribute('aria-pressed', String(isDark));
  };
  button.addEventListener('click', () => {
    chosen = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    try {
      localStorage.setItem('weir-theme', chosen);
    } catch {
      // The choice then lasts until the page is closed.
    }
    apply();
  });
  prefersDark.addEventListener('change', apply);
  apply();
}

onSignal('tab', (id) => showTab(id));
onSignal('overview', showSummary);
onSignal('observed', (ends) => attempt(() => showObserved(ends)));
onSignal('policy', (id) => attempt(() => showPolicy(id)));
onSignal('policies', (filter) => { closePanel(); showTab('policies', filter); });
onSignal('panel', ({ heading, content }) => openPanel(heading, ...content));
onSignal('whatIf', (detail) => { addChange(detail); closePanel(); showTab('whatif'); document.getElementById('editor').focus(); });
document.addEventListener('keydown', (event) => { if (event.key === 'Escape') closePanel(); });

const reload = document.getElementById('reload');
reload.hidden = isStatic || isPlayground;
reload.addEventListener('click', async () => {
  reload.disabled = true;
  await attempt(async () => showOverview(await ask({ kind: 'reload' })));
  reload.disabled = false;
});

let pendingResize = 0;
addEventListener('resize', () => {
  clearTimeout(pendingResize);
  pendingResize = setTimeout(() => { if (current === 'map' && model.overview !== null) showTab('map'); }, 150);
});

setUpTheme();
drawTabs();

/// Opens the input, and draws it.
function start() {
  return attempt(async () => {
    await showOverview(await (isPlayground ? openLinked() : ask({ kind: 'overview' })));
    performance.mark('weir-ready');
  });
}

start();
// Another link can be opened in the same tab.
if (isPlayground) {
  addEventListener('hashchange', () => {
    if (!hasLinkedText()) return;
    current = TABS[0].id;
    start();
  });
}
