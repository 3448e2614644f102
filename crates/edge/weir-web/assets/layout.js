// The positions of the cards of the map. No DOM.

/// Sizes in pixels; views.css uses the same.
export const SIZE = { card: 208, head: 34, row: 24, gap: 26, column: 104, margin: 28, bottom: 6 };

/// The most workloads that an open card lists.
export const MAX_ROWS = 14;

/// Places one card per namespace. `isOpen(namespace)` says whether it lists its workloads.
export function placeCards(overview, isOpen, isShown, width) {
  const cards = [];
  overview.namespaces.forEach((namespace, at) => {
    if (!isShown(at)) return;
    const rows = isOpen(at) ? namespace.ends.slice(0, MAX_ROWS) : [];
    const hidden = isOpen(at) ? namespace.ends.length - rows.length : 0;
    const lines = rows.length + (hidden > 0 ? 1 : 0);
    const height = SIZE.head + lines * SIZE.row + (lines > 0 ? SIZE.bottom : 0);
    cards.push({ at, rows, hidden, height, isOpen: isOpen(at), isNamespace: namespace.isNamespace });
  });
  const sources = cards.filter((card) => !card.isNamespace);
  const rest = cards.filter((card) => card.isNamespace);
  const step = SIZE.card + SIZE.column;
  const fit = Math.max(1, Math.floor((width - 2 * SIZE.margin + SIZE.column) / step) - (sources.length > 0 ? 1 : 0));
  const count = Math.max(1, Math.min(fit, rest.length));
  const columns = Array.from({ length: count }, () => []);
  const heights = columns.map(() => 0);
  for (const card of rest) {
    const lowest = heights.indexOf(Math.min(...heights));
    columns[lowest].push(card);
    heights[lowest] += card.height + SIZE.gap;
  }
  if (sources.length > 0) {
    columns.unshift(sources);
    heights.unshift(sources.reduce((sum, card) => sum + card.height + SIZE.gap, 0));
  }
  const tallest = Math.max(0, ...heights);
  columns.forEach((column, at) => {
    // A short column is centred, so that edges to it are short.
    let y = SIZE.margin + Math.max(0, (Math.min(tallest, 560) - heights[at]) / 2);
    for (const card of column) {
      Object.assign(card, { x: SIZE.margin + at * step, y, column: at });
      y += card.height + SIZE.gap;
    }
  });
  const size = { width: SIZE.margin * 2 + columns.length * step - SIZE.column, height: SIZE.margin * 2 + tallest };
  return { cards, size };
}

/// Where edges meet a row of a card; row -1 is its head.
export function anchor(card, row, side) {
  const y = row < 0 ? card.y + SIZE.head / 2 : card.y + SIZE.head + row * SIZE.row + SIZE.row / 2;
  return { x: side === 'left' ? card.x : card.x + SIZE.card, y };
}

/// The curve between two rows. Edges within a column leave and arrive on the same side.
export function curve(fromCard, fromRow, toCard, toRow) {
  const isSame = fromCard.column === toCard.column;
  const isForward = fromCard.column < toCard.column;
  const start = anchor(fromCard, fromRow, isSame || isForward ? 'right' : 'left');
  const end = anchor(toCard, toRow, isSame || !isForward ? 'right' : 'left');
  if (isSame) {
    const bend = Math.min(72, 22 + Math.abs(end.y - start.y) / 5);
    return `M${start.x} ${start.y}C${start.x + bend} ${start.y} ${end.x + bend} ${end.y} ${end.x} ${end.y}`;
  }
  const pull = Math.max(42, Math.abs(end.x - start.x) / 2.4) * (isForward ? 1 : -1);
  return `M${start.x} ${start.y}C${start.x + pull} ${start.y} ${end.x - pull} ${end.y} ${end.x} ${end.y}`;
}
