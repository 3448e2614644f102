// A text in the fragment of an address. A browser does not send the fragment to a server.

import { RequestError } from './api.js';

const PREFIX = '#m=';
/// The longest text of a link, in bytes: a short link could contain a text of any length.
const MAX_LINK_TEXT = 4 << 20;

/// The address of this page with a text.
export async function linkTo(text) {
  const bytes = await transformed(new TextEncoder().encode(text), new CompressionStream('deflate-raw'));
  let binary = '';
  for (const byte of bytes) binary += String.fromCharCode(byte);
  const code = btoa(binary).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
  return `${location.href.split('#')[0]}${PREFIX}${code}`;
}

/// Whether the address has a text.
export function hasLinkedText() {
  return location.hash.startsWith(PREFIX);
}

/// The text in the address, or null.
export async function linkedText() {
  if (!hasLinkedText()) return null;
  try {
    const binary = atob(location.hash.slice(PREFIX.length).replaceAll('-', '+').replaceAll('_', '/'));
    const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
    return new TextDecoder('utf-8', { fatal: true }).decode(await transformed(bytes, new DecompressionStream('deflate-raw')));
  } catch (error) {
    throw error instanceof RequestError ? error : new RequestError('the link is damaged', 'copy the whole link');
  }
}

async function transformed(bytes, stream) {
  const reader = new Blob([bytes]).stream().pipeThrough(stream).getReader();
  const parts = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return new Uint8Array(await new Blob(parts).arrayBuffer());
    size += value.length;
    if (size > MAX_LINK_TEXT) {
      await reader.cancel();
      throw new RequestError('the text of the link has more than 4 MiB', 'share the manifests as files');
    }
    parts.push(value);
  }
}
