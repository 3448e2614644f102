// The requests of the page: to the server, to a WebAssembly module, or to the answers that a static
// page contains.

import { moduleResponse } from './wasm.js';

const TOKEN_KEY = 'weir-token';

/// Whether this page contains its answers.
export const isStatic = globalThis.weirAnswers !== undefined;
/// Whether this page contains a module that makes the answers.
export const isPlayground = globalThis.weirModule !== undefined;

/// Moves the token from the address bar to the storage of this tab.
function takeToken() {
  const given = /^#token=([0-9a-f]+)$/.exec(location.hash);
  if (given) {
    sessionStorage.setItem(TOKEN_KEY, given[1]);
    history.replaceState(null, '', location.pathname);
  }
  return sessionStorage.getItem(TOKEN_KEY);
}

const token = isStatic || isPlayground ? null : takeToken();

/// An answer that is an error.
export class RequestError extends Error {
  constructor(message, hint) {
    super(message);
    this.hint = hint;
  }
}

/// The answer to a request. The order of the fields matters for a static page.
export async function ask(request) {
  if (isStatic) return staticAnswer(request);
  if (isPlayground) {
    const { answer, error, hint } = await moduleResponse(request);
    if (error !== undefined) throw new RequestError(error, hint);
    return answer;
  }
  let response;
  try {
    response = await fetch('/api', {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', 'Weir-Token': token ?? '' },
      body: JSON.stringify(request),
    });
  } catch {
    throw new RequestError('weir ui is not running any more', 'start it again and open the address that it prints');
  }
  const isJson = response.headers.get('Content-Type') === 'application/json';
  const answer = isJson ? await response.json() : {};
  if (!response.ok) throw new RequestError(answer.error ?? `the server answered with status ${response.status}`, answer.hint ?? '');
  return answer;
}

function staticAnswer(request) {
  const answer = globalThis.weirAnswers[JSON.stringify(request)];
  if (answer === undefined) {
    throw new RequestError('this page has no server, and does not contain this answer', 'run `weir ui` for the same input');
  }
  if (answer.error !== undefined) throw new RequestError(answer.error, answer.hint);
  return answer;
}
