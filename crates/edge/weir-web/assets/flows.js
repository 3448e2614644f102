// The observed flows.

import { element, fill } from './dom.js';

/// The view.
export function flowsView(container) {
  fill(container, element('p', { class: 'faint pad' }, 'No flows were given.'));
}
