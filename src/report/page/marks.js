// What tells mechanisms apart: a colour of Okabe and Ito's set, a dash and a marker each, the same
// in every figure; and which of them are shown. The baseline has the colour of the text.

const palette = ['--blue', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '--sky', '#F0E442'];
const dashes = [[], [7, 3], [2, 3], [9, 3, 2, 3], [4, 4], [12, 4], [2, 2, 6, 2]];
const markers = ['circle', 'rect', 'triangle', 'rectRot', 'crossRot', 'star', 'cross'];

const hidden = new Set();  // names of mechanisms
let results = readResults(JSON.parse(document.getElementById('results').textContent));

const baseline = () =>
  results.mechanisms.find((mechanism) => mechanism.baseline) || results.mechanisms[0];
const shown = () => results.mechanisms.filter((mechanism) => !hidden.has(mechanism.name));

const paint = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/// The two blues change places on a dark ground.
function colourAt(at) {
  const colour = palette[at % palette.length];
  return colour.startsWith('--') ? paint(colour) : colour;
}

/// "#123" and "#112233" as the latter, to which an opacity may be added.
const hexOf = (colour) => (colour.length === 4
  ? `#${[...colour.slice(1)].map((digit) => digit + digit).join('')}` : colour);

/// Of the mechanism with this name; one that the plan does not have gets the last mark.
function markOf(name) {
  const others = results.mechanisms.filter((mechanism) => mechanism !== baseline());
  const at = others.findIndex((mechanism) => mechanism.name === name);
  if (at < 0) return { colour: paint('--ink'), dash: [], marker: 'circle' };
  return {
    colour: colourAt(at),
    dash: dashes[(at + 1) % dashes.length],
    marker: markers[(at + 1) % markers.length],
  };
}

const shapes = {
  circle: () => s('circle', { cx: 0, cy: 0, r: 3.6 }),
  rect: () => s('rect', { x: -3.4, y: -3.4, width: 6.8, height: 6.8 }),
  triangle: () => s('path', { d: 'M0-4.4 4.2 3.2H-4.2Z' }),
  rectRot: () => s('path', { d: 'M0-4.8 4.8 0 0 4.8-4.8 0Z' }),
  crossRot: () => s('path', { d: 'M-3.4-3.4 3.4 3.4M-3.4 3.4 3.4-3.4', 'stroke-width': 2 }),
  star: () => s('path', { d: 'M-4 0H4M0-4V4M-3-3 3 3M-3 3 3-3', 'stroke-width': 1.6 }),
  cross: () => s('path', { d: 'M-4 0H4M0-4V4', 'stroke-width': 2 }),
};

function swatch(name) {
  const mark = markOf(name);
  const marker = shapes[mark.marker]();
  marker.setAttribute('fill', mark.colour);
  marker.setAttribute('stroke', mark.colour);
  marker.setAttribute('transform', 'translate(15 6)');
  return s('svg', { class: 'swatch', viewBox: '0 0 30 12', 'aria-hidden': 'true' },
    s('path', {
      d: 'M0 6H30', stroke: mark.colour, 'stroke-width': 2, 'stroke-dasharray': mark.dash.join(' '),
    }), marker);
}

const named = (name) => h('span', { class: 'named' }, swatch(name), h('span', {}, name));

/// Names that a figure shows, in the order of the plan.
function legend(names) {
  const all = results.mechanisms.map((mechanism) => mechanism.name).filter((n) => names.has(n));
  return h('p', { class: 'legend', 'aria-hidden': 'true' },
    all.filter((name) => !hidden.has(name)).map(named));
}

const themes = ['auto', 'light', 'dark'];
let theme = themes.includes(saved('theme')) ? saved('theme') : 'auto';

function applyTheme(value) {
  if (value === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = value;
}
