// Elements without markup: every text of the input becomes a text node, so it cannot become code.

/// An element. `properties` are DOM properties, except `class`, `data`, `aria` and `on`.
export function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (key === 'class') node.className = value;
    else if (key === 'data') Object.assign(node.dataset, value);
    else if (key === 'role') node.setAttribute('role', value);
    else if (key === 'scope' || key === 'for' || key === 'colspan') node.setAttribute(key, value);
    else if (key === 'aria') for (const [at, text] of Object.entries(value)) node.setAttribute(`aria-${at}`, text);
    else if (key === 'on') for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else node[key] = value;
  }
  node.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return node;
}

/// An SVG element.
export function shape(name, attributes = {}) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

/// Replaces the content of an element.
export function fill(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return node;
}

/// `1 pod`, `2 pods`.
export function plural(number, noun) {
  const nouns = noun.endsWith('y') ? `${noun.slice(0, -1)}ies` : `${noun}s`;
  return `${number.toLocaleString('en')} ${number === 1 ? noun : nouns}`;
}

/// A button that copies a text.
export function copyButton(text) {
  const button = element('button', { type: 'button', class: 'quiet' }, 'Copy');
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = 'Copied';
    } catch {
      button.textContent = 'Copying is not allowed';
    }
  });
  return button;
}

/// A block of code with its title and buttons.
export function codeBlock(title, text, ...buttons) {
  return element('figure', { class: 'code' },
    element('figcaption', {}, element('span', {}, title), element('span', { class: 'spacer' }), ...buttons, copyButton(text)),
    element('pre', { tabIndex: 0, aria: { label: title } }, element('code', {}, text.trimEnd())));
}

/// Moves the focus among elements with the arrow keys. `columns` is the length of a row.
export function arrowKeys(event, items, columns) {
  const at = items.indexOf(document.activeElement);
  if (at < 0) return;
  const row = Math.floor(at / columns);
  const targets = {
    ArrowRight: at + 1,
    ArrowLeft: at - 1,
    ArrowDown: at + columns,
    ArrowUp: at - columns,
    Home: row * columns,
    End: row * columns + columns - 1,
  };
  const target = items[targets[event.key]];
  if (!(event.key in targets) || target === undefined) return;
  event.preventDefault();
  items[at].tabIndex = -1;
  target.tabIndex = 0;
  target.focus();
}

/// Sends an event to the other views, without a dependency on them.
export function signal(name, detail) {
  document.dispatchEvent(new CustomEvent(`weir:${name}`, { detail }));
}

/// Calls a handler for the events that other views send.
export function onSignal(name, handler) {
  document.addEventListener(`weir:${name}`, (event) => handler(event.detail));
}
