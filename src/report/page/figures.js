// Figures by Chart.js: each with a heading, a drawing, and the same numbers as a table. Whiskers
// and the dots of single seeds are drawn here. Arrow keys walk over the points of a figure.

const drawn = new Set();  // the charts on the page
const hasCharts = typeof Chart !== 'undefined';

const whiskers = {
  id: 'whiskers',
  afterDatasetDraw(chart, { index }) {
    const set = chart.data.datasets[index];
    const meta = chart.getDatasetMeta(index);
    if (!set.ends || meta.hidden) return;
    const across = chart.options.indexAxis === 'y';
    const scale = meta[across ? 'xAxisID' : 'yAxisID'];
    const to = (value) => chart.scales[scale].getPixelForValue(value);
    const pen = chart.ctx;
    pen.save();
    pen.lineWidth = 1.4;
    meta.data.forEach((point, i) => {
      const colour = Array.isArray(set.borderColor) ? set.borderColor[i] : set.borderColor;
      pen.strokeStyle = set.whiskerColour || colour;
      const side = across ? point.y : point.x;
      const line = (x0, y0, x1, y1) => {
        pen.beginPath();
        pen.moveTo(across ? x0 : y0, across ? y0 : x0);
        pen.lineTo(across ? x1 : y1, across ? y1 : x1);
        pen.stroke();
      };
      const end = set.ends[i];
      if (end) {
        line(to(end[0]), side, to(end[1]), side);
        line(to(end[0]), side - 4, to(end[0]), side + 4);
        line(to(end[1]), side - 4, to(end[1]), side + 4);
      }
      for (const value of (set.dots && set.dots[i]) || []) {
        if (value === null) continue;
        pen.beginPath();
        pen.arc(across ? to(value) : side, across ? side + 11 : to(value), 2.4, 0, 2 * Math.PI);
        pen.stroke();
      }
    });
    pen.restore();
  },
};

const axis = (title, more = {}) => ({
  title: { display: Boolean(title), text: title, color: paint('--soft') },
  ticks: { color: paint('--soft'), ...more.ticks },
  grid: { color: paint('--line'), borderColor: paint('--line') },
  ...Object.fromEntries(Object.entries(more).filter(([name]) => name !== 'ticks')),
});

function draw(canvas, config) {
  const options = config.options || {};
  const chart = new Chart(canvas, {
    ...config,
    plugins: [whiskers],
    options: {
      responsive: true,
      maintainAspectRatio: false,
      animation: false,
      font: { family: paint('--text') },
      ...options,
      plugins: {
        legend: { display: false },
        ...options.plugins,
        tooltip: {
          backgroundColor: paint('--ink'), titleColor: paint('--paper'),
          bodyColor: paint('--paper'), usePointStyle: true, padding: 10, boxPadding: 4,
          ...(options.plugins || {}).tooltip,
        },
      },
    },
  });
  drawn.add(chart);
  walkable(canvas, chart);
  return chart;
}

/// Left and right go along a series, up and down to the next one.
function walkable(canvas, chart) {
  let at = null;
  const moves = {
    ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0],
  };
  canvas.addEventListener('keydown', (event) => {
    const move = moves[event.key];
    const sets = chart.data.datasets.length;
    if (!move || sets === 0) return;
    event.preventDefault();
    at = at === null ? { set: 0, point: 0 } : { set: at.set + move[0], point: at.point + move[1] };
    at.set = Math.max(0, Math.min(sets - 1, at.set));
    const points = chart.getDatasetMeta(at.set).data;
    at.point = Math.max(0, Math.min(points.length - 1, at.point));
    if (points.length === 0) return;
    const active = [{ datasetIndex: at.set, index: at.point }];
    const { x, y } = points[at.point];
    chart.setActiveElements(active);
    chart.tooltip.setActiveElements(active, { x, y });
    chart.update('none');
    const body = chart.tooltip.body.map((part) => part.lines.join(', ')).join('; ');
    say(`${(chart.tooltip.title || []).join(' ')} ${body}`);
  });
  canvas.addEventListener('blur', () => {
    at = null;
    chart.setActiveElements([]);
    chart.tooltip.setActiveElements([], { x: 0, y: 0 });
    chart.update('none');
  });
}

/// `parts`: id, title, about, names (a set of mechanisms), config() for Chart.js, table(), and what
/// stands above the drawing (controls) and how tall that is (height).
function figure(parts) {
  const element = h('figure', { id: parts.id, class: parts.wide ? 'wide' : null },
    h('figcaption', {}, h('h3', {}, parts.title), parts.about ? h('p', {}, parts.about) : null),
    parts.controls);
  if (hasCharts) {
    const label = `${parts.title}: a figure. Arrow keys walk over its points; the same numbers ` +
      'stand in the table below.';
    const canvas = h('canvas', { tabindex: 0, role: 'img', 'aria-label': label });
    const plot = h('div', { class: 'plot' }, canvas);
    plot.style.height = `${parts.height || 260}px`;
    element.append(plot);
    if (parts.names) element.append(legend(parts.names));
    queueMicrotask(() => canvas.isConnected && draw(canvas, parts.config()));
    element.append(folded(`${parts.id}-numbers`, 'Numbers', parts.table()));
  } else {
    element.append(parts.table());
  }
  return element;
}

function forgetFigures() {
  for (const chart of drawn) chart.destroy();
  drawn.clear();
}

/// A line over points of x with the spread of its seeds: `mean` and `values` (a list per point).
function lineSet(name, mean, values) {
  const mark = markOf(name);
  return {
    label: name,
    data: mean,
    borderColor: mark.colour,
    backgroundColor: mark.colour,
    borderDash: mark.dash,
    borderWidth: 2,
    pointStyle: mark.marker,
    pointRadius: 4,
    pointBorderWidth: 1.8,
    pointHoverRadius: 6,
    spanGaps: true,
    ends: values ? values.map(endsOf) : null,
  };
}

/// Lowest and highest of the seeds, when there are several.
function endsOf(values) {
  const there = (values || []).filter((value) => value !== null && value !== undefined);
  return there.length < 2 ? null : [Math.min(...there), Math.max(...there)];
}

const sectionOf = (id, title, about, ...content) =>
  h('section', { id, 'aria-labelledby': `${id}-title` },
    h('h2', { id: `${id}-title` }, title),
    about ? h('p', { class: 'lead' }, about) : null, content);
