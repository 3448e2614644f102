// The state that all views share.

import { ask } from './api.js';

/// The overview of the input, and the caches for it.
export const model = { overview: null, cells: new Map(), ends: new Map(), policies: null };

/// The words for the share of the evaluated ports that are open.
export const REACH = {
  all: { word: 'allowed', sign: '●', text: 'all evaluated ports are open' },
  some: { word: 'partly allowed', sign: '◐', text: 'some ports are open' },
  none: { word: 'denied', sign: '○', text: 'no port is open' },
  notJudged: { word: 'not judged', sign: '?', text: 'not on the cluster network' },
};

/// Sets a new overview and forgets the answers about the old one.
export function setOverview(overview) {
  Object.assign(model, { overview, cells: new Map(), ends: new Map(), policies: null });
}

/// The cells from one namespace to another, as rows of [source, destination, cell].
export async function cellsBetween(from, to) {
  const { cells, namespaces } = model.overview;
  if (cells !== null) {
    const [sources, targets] = [new Set(namespaces[from].ends), new Set(namespaces[to].ends)];
    return joined(cells).filter(([source, target]) => sources.has(source) && targets.has(target));
  }
  const key = `${from} ${to}`;
  if (!model.cells.has(key)) model.cells.set(key, ask({ kind: 'cells', from, to }).then(joined));
  return model.cells.get(key);
}

/// The cells from and to one workload.
export async function cellsOf(end) {
  const { cells } = model.overview;
  if (cells !== null) {
    const all = joined(cells);
    return { out: all.filter(([from]) => from === end), in: all.filter(([, to]) => to === end) };
  }
  if (!model.ends.has(end)) {
    const answer = ask({ kind: 'end', end }).then((both) => ({ out: joined(both.out), in: joined(both.in) }));
    model.ends.set(end, answer);
  }
  return model.ends.get(end);
}

/// All policies and findings.
export async function policyList() {
  if (model.policies === null) model.policies = await ask({ kind: 'policies' });
  return model.policies;
}

function joined({ cells, rows }) {
  return rows.map(([from, to, cell]) => [from, to, cells[cell]]);
}

/// The open ports of a cell as a short text; for a connection that was only denied, the ports that were tried.
export function portText(cell) {
  if (cell.reach === 'none') return model.overview.hasPolicies ? 'no port' : shortList(cell.denied);
  if (cell.reach === 'notJudged') return 'not judged';
  return shortList([...cell.allowed, ...(cell.partly ?? []).map((port) => `${port} (partly)`), ...(cell.otherPorts ?? [])]);
}

function shortList(ports) {
  return ports.length > 4 ? `${ports.slice(0, 4).join(', ')} and ${ports.length - 4} more` : ports.join(', ');
}
