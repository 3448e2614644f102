// The answers of a page without a server: a WebAssembly module that the page contains.

let instance = null;

/// The response of the module: `{answer}`, or `{error, hint}`.
export async function moduleResponse(request) {
  const bytes = new TextEncoder().encode(JSON.stringify(request));
  try {
    instance ??= await startModule();
    // The memory can move when it grows, so the address comes before the view of the memory.
    const input = instance.weir_input(bytes.length);
    new Uint8Array(instance.memory.buffer, input, bytes.length).set(bytes);
    const length = instance.weir_answer();
    const answer = new Uint8Array(instance.memory.buffer, instance.weir_output(), length);
    return JSON.parse(new TextDecoder().decode(answer));
  } catch (error) {
    // A module that stopped in the middle is not used again.
    instance = null;
    return { error: `the WebAssembly module failed: ${error.message}`, hint: 'reload the page, or run `weir ui` for the same manifests' };
  }
}

async function startModule() {
  const bytes = Uint8Array.from(atob(globalThis.weirModule), (character) => character.charCodeAt(0));
  const started = await WebAssembly.instantiate(bytes, {});
  return started.instance.exports;
}
