// Keys and a query in a plane: the area of a key is its weight, and around the query lie the points
// of equal score, as the metric (which comes from the library) has them: ellipses for a distance,
// lines for a product.

const planeSize = 320;

/// A box around all points, a little wider, with the same scale both ways.
function frameOf(points) {
  const xs = points.map((p) => p[0]);
  const ys = points.map((p) => p[1]);
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const reach = 0.58 * Math.max(right - left, high - low, 1e-9);
  return { middle: [(left + right) / 2, (low + high) / 2], reach };
}

const toPlane = (box, p) => [
  planeSize * (0.5 + (p[0] - box.middle[0]) / (2 * box.reach)),
  planeSize * (0.5 - (p[1] - box.middle[1]) / (2 * box.reach)),
];
const fromPlane = (box, x, y) => [
  box.middle[0] + 2 * box.reach * (x / planeSize - 0.5),
  box.middle[1] - 2 * box.reach * (y / planeSize - 0.5),
];

/// Axes of the ellipse d'Md = 1; null when M has a direction that costs nothing.
function axesOf(metric) {
  const [[a, b], [, d]] = metric;
  const half = (a + d) / 2;
  const root = Math.hypot((a - d) / 2, b);
  const [large, small] = [half + root, half - root];
  if (!(small > 1e-12 * Math.max(1, large))) return null;
  const angle = Math.atan2(2 * b, a - d) / 2;
  return { angle, radii: [1 / Math.sqrt(large), 1 / Math.sqrt(small)] };
}

/// Ellipses around the query; the outermost reaches most of the keys.
function contours(box, query, metric, keys) {
  const axes = axesOf(metric);
  if (!axes) return null;
  const distances = keys.map((key) => {
    const [x, y] = [key[0] - query[0], key[1] - query[1]];
    return Math.sqrt(x * x * metric[0][0] + 2 * x * y * metric[0][1] + y * y * metric[1][1]);
  }).sort((a, b) => a - b);
  const middle = distances[Math.floor(distances.length / 2)] || 1;
  const [x, y] = toPlane(box, query);
  const scale = planeSize / (2 * box.reach);
  return [0.5, 1, 1.5].map((level) => s('ellipse', {
    cx: x, cy: y, rx: scale * level * middle * axes.radii[0],
    ry: scale * level * middle * axes.radii[1],
    transform: `rotate(${(-axes.angle * 180) / Math.PI} ${x} ${y})`, class: 'contour',
  }));
}

/// Where a product gives equal scores: lines across the direction Mq.
function productLines(box, query, metric) {
  const along = [
    metric[0][0] * query[0] + metric[0][1] * query[1],
    metric[1][0] * query[0] + metric[1][1] * query[1],
  ];
  const length = Math.hypot(...along);
  if (!(length > 0)) return null;
  const unit = along.map((x) => x / length);
  return [-1, -0.5, 0, 0.5, 1].map((step) => {
    const at = box.middle.map((m, i) => m + step * box.reach * unit[i]);
    const across = [-3 * box.reach * unit[1], 3 * box.reach * unit[0]];
    const [x0, y0] = toPlane(box, [at[0] + across[0], at[1] + across[1]]);
    const [x1, y1] = toPlane(box, [at[0] - across[0], at[1] - across[1]]);
    return s('path', { d: `M${x0} ${y0}L${x1} ${y1}`, class: 'contour' });
  });
}

/// `what`: keys, query, metric, weights, form (product or distance), colour, and a box if it is to
/// stay the same from drawing to drawing.
function planeOf(what) {
  const box = what.box || frameOf([...what.keys, ...(what.query ? [what.query] : [])]);
  const total = what.weights.reduce((a, b) => a + Math.abs(b || 0), 0);
  const clip = freshId('clip');
  const lines = !what.query || !what.metric ? null
    : what.form === 'product' ? productLines(box, what.query, what.metric)
      : contours(box, what.query, what.metric, what.keys);
  const keys = what.keys.map((key, i) => {
    const [x, y] = toPlane(box, key);
    const weight = total > 0 ? Math.abs(what.weights[i] || 0) / total : 0;
    const negative = (what.weights[i] || 0) < 0;
    return [
      s('circle', { cx: x, cy: y, r: 46 * Math.sqrt(weight), fill: what.colour,
        stroke: what.colour, class: negative ? 'weight negative' : 'weight' },
      s('title', {}, `key ${i}: weight ${digits(what.weights[i] || 0)}`)),
      s('circle', { cx: x, cy: y, r: 2, class: 'key' }),
    ];
  });
  const at = what.query ? toPlane(box, what.query) : null;
  return s('svg', { viewBox: `0 0 ${planeSize} ${planeSize}`, class: 'plane', ...what.attributes },
    s('clipPath', { id: clip }, s('rect', { width: planeSize, height: planeSize })),
    s('rect', { width: planeSize, height: planeSize, class: 'ground' }),
    s('g', { 'clip-path': `url(#${clip})` }, lines, keys,
      at ? s('path', { d: `M${at[0] - 7} ${at[1]}h14M${at[0]} ${at[1] - 7}v14`, class: 'query' })
        : null));
}

function ellipsePanel(ellipse) {
  const mechanism = results.mechanisms.find((m) => m.name === ellipse.mechanism);
  const words = mechanism ? mechanism.words : {};
  const full = /covariance|full|given/.test(ellipse.mechanism);
  const form = asText(words.form) || (full ? 'distance' : 'product');
  const place = [
    ellipse.layer === null ? '' : `layer ${ellipse.layer}`,
    ellipse.head === null ? '' : `head ${ellipse.head}`,
    ellipse.axes.length === 2 ? `coordinates ${ellipse.axes.join(' and ')}` : '',
  ].filter(Boolean).join(', ');
  const largest = Math.max(0, ...ellipse.weights.map((w) => Math.abs(w || 0)));
  return h('div', { class: 'panel' },
    h('p', { class: 'panel-name' }, named(ellipse.mechanism)),
    planeOf({ ...ellipse, form, colour: markOf(ellipse.mechanism).colour, attributes: {
      role: 'img',
      'aria-label': `${ellipse.mechanism}, ${place}: ${ellipse.keys.length} keys, ` +
        `largest weight ${digits(largest)}`,
    } }),
    h('p', { class: 'fine' }, [place, metricText(ellipse)].filter(Boolean).join('. ')));
}

/// What the metric makes of the two coordinates.
function metricText({ metric, axes }) {
  if (!metric || axes.length !== 2) return '';
  const [[a, b], [, d]] = metric;
  const both = b === 0 ? '' : `, both together ${digits(b)}`;
  return `Coordinate ${axes[0]} counts ${digits(a)}, coordinate ${axes[1]} counts ` +
    `${digits(d)}${both}.`;
}

let ellipsePlace = null;  // the layer and head that are shown, "1 0"

const placeOf = (ellipse) => `${ellipse.layer ?? 0} ${ellipse.head ?? 0}`;

function ellipsesSection() {
  const drawable = results.ellipses.filter((ellipse) => ellipse.keys.length > 0);
  if (drawable.length === 0) return null;
  const places = [...new Set(drawable.map(placeOf))];
  if (!places.includes(ellipsePlace)) ellipsePlace = places[Math.floor(places.length / 2)];
  const names = places.map((name) => [name, `layer ${name.replace(' ', ', head ')}`]);
  const control = places.length < 2 ? null : h('div', { class: 'controls' }, labelled('Shown',
    select('ellipse-place', names, ellipsePlace, (value) => {
      ellipsePlace = value;
      render();
    })));
  return sectionOf('ellipses', 'What is near',
    'Keys of one head in two of its coordinates. The area of a disc is the weight its key gets ' +
    'from the query at the cross; the lines join points of equal score under the metric in ' +
    'these two coordinates. The numbers below say how much the metric lets each of them count ' +
    'in a score: 1 and 1 is plain attention.', control, h('div', { class: 'panels' }, drawable
      .filter((ellipse) => placeOf(ellipse) === ellipsePlace && !hidden.has(ellipse.mechanism))
      .map(ellipsePanel)));
}
