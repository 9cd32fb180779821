// Where a query looks: the weights of one image, layer, head and query, the baseline beside the
// others, over the image or as the whole matrix. Every row is shown against its own largest weight.

const chosen = { image: 0, layer: null, head: 0, query: null, view: 'image' };
const decoded = new Map();  // base64 -> bytes

function bytesOf(text) {
  if (!decoded.has(text)) {
    let bytes = new Uint8Array(0);
    try {
      bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    } catch (fault) {
      bytes = new Uint8Array(0);  // no base64: shown as nothing
    }
    decoded.set(text, bytes);
  }
  return decoded.get(text);
}

const ramp = [[0, 32, 77], [65, 77, 107], [124, 123, 120], [188, 175, 111], [255, 234, 70]];

/// Dark blue over grey to yellow, for x in [0, 1]: lightness rises evenly for every kind of sight.
function rampAt(x) {
  const place = Math.max(0, Math.min(1, x)) * (ramp.length - 1);
  const low = Math.min(ramp.length - 2, Math.floor(place));
  return ramp[low].map((c, i) => Math.round(c + (place - low) * (ramp[low + 1][i] - c)));
}

/// One row of weights as bytes, or all of the head's.
function rowOf(map, weights, query) {
  const n = map.tokens;
  const begin = ((chosen.layer * weights.heads + chosen.head) * n + query) * n;
  return bytesOf(weights.data).subarray(begin, begin + n);
}

/// From bytes: share of the whole, and 1/sum of squared shares, rounded as the bytes are.
function rowFacts(row) {
  const sum = row.reduce((a, b) => a + b, 0);
  if (sum === 0) return null;
  const squares = row.reduce((a, b) => a + b * b, 0);
  return { sum, effective: (sum * sum) / squares, largest: Math.max(...row) / sum };
}

function tokenText(map, token) {
  if (token < map.prefix) return map.prefix === 1 ? 'the class token' : `extra token ${token + 1}`;
  const place = token - map.prefix;
  if (map.words[token]) return `“${map.words[token]}”`;
  if (map.grid === 0) return `token ${token}`;
  return `patch in row ${Math.floor(place / map.grid) + 1}, column ${place % map.grid + 1}`;
}

function pictureOf(map) {
  const bytes = bytesOf(map.pixels);
  const count = map.side * map.height;
  if (count === 0 || bytes.length < count * map.channels) return null;
  const picture = h('canvas', { width: map.side, height: map.height });
  const pen = picture.getContext('2d');
  const data = pen.createImageData(map.side, map.height);
  for (let i = 0; i < count; ++i) {
    for (let c = 0; c < 3; ++c) {
      data.data[4 * i + c] = bytes[i * map.channels + (map.channels === 1 ? 0 : c)];
    }
    data.data[4 * i + 3] = 255;
  }
  pen.putImageData(data, 0, 0);
  return picture;
}

function frame(pen, x, y, width, height) {
  for (const [line, colour] of [[7, '#000'], [3, '#fff']]) {
    pen.lineWidth = line;
    pen.strokeStyle = colour;
    pen.strokeRect(x + 3, y + 3, width - 6, Math.max(1, height - 6));
  }
}

/// The weights over the image: the brighter a patch, the more the query takes from it.
function drawOver(canvas, map, row) {
  const size = canvas.width;
  const cell = size / map.grid;
  const pen = canvas.getContext('2d');
  const picture = pictureOf(map);
  pen.imageSmoothingEnabled = false;
  pen.fillStyle = '#000';
  pen.fillRect(0, 0, size, size);
  if (picture) {
    pen.globalAlpha = 0.8;
    pen.drawImage(picture, 0, 0, size, size);
  }
  for (let place = 0; place < map.grid * map.grid; ++place) {
    const x = row[map.prefix + place] / 255;
    pen.globalAlpha = picture ? 0.25 + 0.6 * x : 1;
    pen.fillStyle = `rgb(${rampAt(x).join(' ')})`;
    pen.fillRect((place % map.grid) * cell, Math.floor(place / map.grid) * cell, cell, cell);
  }
  pen.globalAlpha = 1;
  const place = chosen.query - map.prefix;
  if (place < 0) return;
  frame(pen, (place % map.grid) * cell, Math.floor(place / map.grid) * cell, cell, cell);
}

function drawMatrix(canvas, map, weights) {
  const n = map.tokens;
  const small = h('canvas', { width: n, height: n });
  const pen = small.getContext('2d');
  const data = pen.createImageData(n, n);
  for (let query = 0; query < n; ++query) {
    const row = rowOf(map, weights, query);
    for (let key = 0; key < n; ++key) {
      const colour = rampAt((row[key] || 0) / 255);
      data.data.set([...colour, 255], 4 * (query * n + key));
    }
  }
  pen.putImageData(data, 0, 0);
  const big = canvas.getContext('2d');
  big.imageSmoothingEnabled = false;
  big.drawImage(small, 0, 0, canvas.width, canvas.height);
  const cell = canvas.height / n;
  frame(big, 0, chosen.query * cell - 1, canvas.width, cell + 2);
}

function moveQuery(map, by) {
  const next = Math.max(0, Math.min(map.tokens - 1, chosen.query + by));
  if (next === chosen.query) return;
  chosen.query = next;
  refreshPanels(map);
  say(`Query: ${tokenText(map, next)}`);
}

function mapKeys(event, map) {
  const down = chosen.view === 'matrix' || map.grid === 0 ? 1 : map.grid;
  const moves = {
    ArrowRight: 1, ArrowLeft: -1, ArrowDown: down, ArrowUp: -down, Home: -map.tokens,
    End: map.tokens,
  };
  if (!(event.key in moves)) return;
  event.preventDefault();
  moveQuery(map, moves[event.key]);
}

function mapClick(event, map) {
  const box = event.currentTarget.getBoundingClientRect();
  const along = (event.clientX - box.left) / box.width;
  const down = (event.clientY - box.top) / box.height;
  const query = overImage(map)
    ? map.prefix + Math.floor(down * map.grid) * map.grid + Math.floor(along * map.grid)
    : Math.floor(down * map.tokens);
  moveQuery(map, query - chosen.query);
}

const overImage = (map) => chosen.view === 'image' && map.grid > 0;

function mapPanel(map, mechanism) {
  const weights = map.weights.get(mechanism.name);
  const fits = weights && bytesOf(weights.data).length >=
    weights.layers * weights.heads * map.tokens * map.tokens;
  const name = h('p', { class: 'panel-name' }, named(mechanism.name));
  if (!fits || chosen.layer >= weights.layers || chosen.head >= weights.heads) {
    return h('div', { class: 'panel' }, name, h('p', { class: 'fine' }, 'No weights for this.'));
  }
  const row = rowOf(map, weights, chosen.query);
  const facts = rowFacts(row);
  const canvas = h('canvas', {
    width: 336, height: 336, tabindex: 0, role: 'application', class: 'map',
    id: `map-${results.mechanisms.indexOf(mechanism)}`,
    'aria-label': `Weights of ${mechanism.name}: arrow keys move the query`,
    keydown: (event) => mapKeys(event, map), click: (event) => mapClick(event, map),
  });
  if (overImage(map)) drawOver(canvas, map, row);
  else drawMatrix(canvas, map, weights);
  const prefix = facts && map.prefix > 0 && overImage(map)
    ? `, ${percent(row[0] / facts.sum)} on ${tokenText(map, 0)}` : '';
  return h('div', { class: 'panel' }, name, canvas, h('p', { class: 'fine' }, facts
    ? `about ${digits(facts.effective, 2)} effective ${
      plural(Math.round(facts.effective), 'key')}, largest ${percent(facts.largest)}${prefix}`
    : 'this row is empty'));
}

function settle(map) {
  const all = [...map.weights.values()];
  const layers = Math.max(1, ...all.map((weights) => weights.layers));
  const heads = Math.max(1, ...all.map((weights) => weights.heads));
  chosen.layer = Math.min(chosen.layer ?? Math.floor(layers / 2), layers - 1);
  chosen.head = Math.min(chosen.head, heads - 1);
  if (chosen.query === null && map.grid > 0) {
    chosen.query = map.prefix + Math.floor(map.grid / 2) * (map.grid + 1);  // in the middle
  }
  chosen.query = Math.max(0, Math.min(chosen.query ?? 0, map.tokens - 1));
  return { layers, heads };
}

const upTo = (count) => Array.from({ length: count }, (_, i) => [String(i), String(i)]);

function thumbnails() {
  if (results.maps.length < 2) return null;
  return h('div', { class: 'thumbnails', role: 'group', 'aria-label': 'Image' },
    results.maps.map((map, i) => {
      const picture = pictureOf(map);
      if (picture) picture.setAttribute('aria-hidden', 'true');
      return h('button', {
        type: 'button', id: `image-${i}`, 'aria-pressed': String(i === chosen.image),
        click: () => { chosen.image = i; refreshMaps(); },
      }, picture, h('span', {}, map.label || `sample ${i + 1}`));
    }));
}

function mapControls(map, sizes) {
  const query = h('input', {
    id: 'map-query', type: 'range', min: 0, max: Math.max(0, map.tokens - 1), value: chosen.query,
    'aria-valuetext': tokenText(map, chosen.query),
    input: (event) => moveQuery(map, Number(event.target.value) - chosen.query),
  });
  const change = (part) => (value) => { chosen[part] = Number(value); refreshMaps(); };
  return h('div', { class: 'controls' },
    labelled('Layer', select('map-layer', upTo(sizes.layers), String(chosen.layer),
      change('layer'))),
    labelled('Head', select('map-head', upTo(sizes.heads), String(chosen.head), change('head'))),
    map.grid === 0 ? null : labelled('Show', select('map-view',
      [['image', 'over the image'], ['matrix', 'queries by keys']], chosen.view,
      (value) => { chosen.view = value; refreshMaps(); })),
    labelled(queryText(map), query));
}

const queryText = (map) => `Query: ${tokenText(map, chosen.query)}`;

function mapTable(map) {
  const there = shown().filter((mechanism) => map.weights.has(mechanism.name));
  const facts = there.map((mechanism) => {
    const row = rowOf(map, map.weights.get(mechanism.name), chosen.query);
    return { row, sum: row.reduce((a, b) => a + b, 0) };
  });
  const tokens = Array.from({ length: map.tokens }, (_, i) => i);
  return tableOf('Share of the weight of this query, from bytes',
    ['Key', ...there.map((mechanism) => mechanism.name)],
    tokens.map((token) => [tokenText(map, token), ...facts.map(({ row, sum }) =>
      (sum > 0 && row.length > token ? percent(row[token] / sum) : dash))]));
}

const panelsOf = (map) => [
  h('div', { class: 'panels' }, shown().map((mechanism) => mapPanel(map, mechanism))),
  folded('map-numbers', 'Numbers', () => mapTable(map)),
];

function mapContent() {
  chosen.image = Math.max(0, Math.min(chosen.image, results.maps.length - 1));
  const map = results.maps[chosen.image];
  const sizes = settle(map);
  return [thumbnails(), mapControls(map, sizes), h('div', { id: 'map-panels' }, panelsOf(map))]
    .filter(Boolean);
}

/// What has the focus keeps it though it is made anew.
function keepingFocus(change) {
  const focus = document.activeElement && document.activeElement.id;
  change();
  const again = focus && document.getElementById(focus);
  if (again && again !== document.activeElement) again.focus({ preventScroll: true });
}

function refreshMaps() {
  keepingFocus(() => document.getElementById('map-holder').replaceChildren(...mapContent()));
}

/// The query alone has moved: its slider stays, for somebody may be dragging it.
function refreshPanels(map) {
  const query = document.getElementById('map-query');
  query.value = chosen.query;
  query.setAttribute('aria-valuetext', tokenText(map, chosen.query));
  query.previousSibling.textContent = queryText(map);
  keepingFocus(() => document.getElementById('map-panels').replaceChildren(...panelsOf(map)));
}

function mapsSection() {
  if (results.maps.length === 0 || results.maps.every((map) => map.tokens === 0)) return null;
  return sectionOf('maps', 'Where it looks',
    'Choose an image, a layer, a head and a query (click, or use the arrow keys on a picture). ' +
    'Yellow is the largest weight of the row, dark blue none.',
    h('div', { id: 'map-holder' }, mapContent()));
}
