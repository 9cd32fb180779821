// The explorer: one query, a few keys, and every choice of a mechanism as a slider. All numbers
// come from the library that `foci serve` runs; the page sends the tensors and draws the answer.

const explorer = {
  cloud: 'made',
  query: [0.4, 0.5],
  words: { metric: 'layer-change', form: 'distance', weighting: 'softmax', normalize: 'max' },
  scaling: 'own',
  scale: 4,
  ridge: -6,
  prior: 0,
  change: [1, 0.25],
  rate: 0.9,
  content: 'no',
  seed: 0,
  asked: null,   // what is being computed
  waiting: null,  // what has been chosen since
  answer: null,
  fault: null,
};

/// 24 keys, stretched along a slanted line; the same numbers every time.
function madeKeys() {
  let state = 7;
  const uniform = () => {
    state = (state * 48271) % 2147483647;
    return state / 2147483647;
  };
  const normal = () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  return Array.from({ length: 24 }, () => {
    const [along, across] = [1.1 * normal(), 0.4 * normal()];
    return [0.8 * along - 0.6 * across, 0.6 * along + 0.8 * across]
      .map((x) => Math.round(1000 * x) / 1000);
  });
}

function cloudKeys() {
  if (explorer.cloud === 'made') return madeKeys();
  const ellipse = results.ellipses[Number(explorer.cloud)];
  return ellipse && ellipse.keys.length > 0 ? ellipse.keys.slice(0, 256) : madeKeys();
}

const diagonal = ['layer-change', 'flat', 'jacobian', 'random'];

/// The flags of `foci attend` for what is chosen; those a metric does not have are left out.
function explorerWords() {
  const { metric, form, weighting, normalize } = explorer.words;
  const words = { metric, weighting, dtype: 'f64' };
  if (metric !== 'key-covariance') words.form = form;
  if (diagonal.includes(metric)) words.normalize = normalize;
  if (metric === 'key-covariance') {
    words.ridge = (10 ** explorer.ridge).toPrecision(3);
    words.prior = String(explorer.prior);
  }
  if (metric === 'random') words.seed = String(explorer.seed);
  if (weighting === 'decay') {
    words.causal = 'true';  // it is of keys that came before; the last one is the youngest
    words.rate = explorer.rate.toPrecision(3);
    if (explorer.content === 'yes') words.content = 'true';
  }
  if (explorer.scaling === 'own') words.scale = explorer.scale.toPrecision(3);
  if (explorer.scaling === 'auto') words.scale = 'auto';
  return words;
}

/// Values are the keys; the layer below had them a step away, in turn to either side.
function explorerRequest() {
  const keys = cloudKeys();
  const below = keys.map((key, i) => key.map((x, d) => x - (i % 2 ? -1 : 1) * explorer.change[d]));
  return { words: explorerWords(), q: [explorer.query], k: keys, v: keys, v_prev: below };
}

async function ask() {
  if (explorer.asked) {
    explorer.waiting = true;
    return;
  }
  explorer.asked = explorerRequest();
  try {
    const reply = await fetch('explore', {
      method: 'POST', headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify(explorer.asked),
    });
    const answer = await reply.json();
    explorer.fault = reply.ok ? null : asText(answer.error) || `status ${reply.status}`;
    if (reply.ok) explorer.answer = { ...answer, request: explorer.asked };
  } catch (fault) {
    explorer.fault = 'foci serve does not answer any more; start it again.';
  }
  explorer.asked = null;
  showAnswer();
  if (explorer.waiting) {
    explorer.waiting = null;
    ask();
  }
}

function explorerPlane() {
  const { answer } = explorer;
  const keys = cloudKeys();
  const same = answer && JSON.stringify(answer.request.k) === JSON.stringify(keys);
  const query = explorer.query;
  const box = frameOf([...keys, [0, 0]]);
  const metric = explorer.words.metric === 'key-covariance' ? 'distance' : explorer.words.form;
  return planeOf({
    keys, query, box, form: metric, colour: colourAt(1),
    weights: same ? asNumbers(answer.weights) : keys.map(() => 0),
    metric: same ? answer.metric : null,
    attributes: { 'aria-hidden': 'true' },
  });
}

const factWords = {
  concentration: ['Concentration S', 'how evenly the weights spread over the keys'],
  effective_keys: ['Effective keys', 'n S²'],
  entropy: ['Entropy', 'of the weights'],
  largest: ['Largest weight', ''],
  lse: ['lse', 'log of the sum of exp of the scores'],
};

function showAnswer() {
  const { answer, fault } = explorer;
  const plane = document.getElementById('explorer-plane');
  if (!plane) return;
  plane.replaceChildren(explorerPlane());
  document.getElementById('explorer-fault').textContent = fault || '';
  const facts = document.getElementById('explorer-facts');
  const stale = Boolean(fault);
  facts.classList.toggle('stale', stale);
  if (!answer) return;
  facts.replaceChildren(...Object.entries(factWords)
    .filter(([name]) => typeof answer[name] === 'number')
    .map(([name, [title, about]]) => h('div', {}, h('dt', { title: about }, title),
      h('dd', { id: `explorer-${name}`, 'data-value': answer[name] }, digits(answer[name], 4)))));
  const weights = asNumbers(answer.weights);
  document.getElementById('explorer-numbers').replaceChildren(
    tableOf('Weights of the query', ['Key', 'x', 'y', 'weight'], weights.map((weight, i) => [
      String(i), ...answer.request.k[i].map((x) => digits(x, 4)), digits(weight ?? 0, 6),
    ])));
  document.getElementById('explorer-command').textContent = asText(answer.command);
}

function slider(id, title, range, value, onInput, text) {
  const words = h('output', { for: id }, text(value));
  const control = h('input', { id, type: 'range', ...range, value, input: (event) => {
    const now = Number(event.target.value);
    words.textContent = text(now);
    event.target.setAttribute('aria-valuetext', text(now));
    onInput(now);
    ask();
  } });
  return h('label', { class: 'labelled', for: id }, h('span', {}, title, ' ', words), control);
}

function choice(id, title, values, part) {
  return labelled(title, select(id, values.map((value) => [value, value]), explorer.words[part],
    (value) => {
      explorer.words[part] = value;
      const full = explorer.words.metric === 'key-covariance';
      if (explorer.scaling === 'auto' && !full) explorer.scaling = 'own';
      refreshExplorer();
    }));
}

function refreshExplorer() {
  keepingFocus(() => document.getElementById('explorer-controls')
    .replaceChildren(...explorerControls().filter(Boolean)));
  ask();
}

function explorerControls() {
  const { metric } = explorer.words;
  const clouds = [['made', 'made: 24 on a slant'], ...results.ellipses.map((ellipse, i) => [
    String(i),
    `${ellipse.mechanism}, layer ${ellipse.layer ?? '?'}, head ${ellipse.head ?? '?'}`])];
  const estimates = metric === 'layer-change' || metric === 'flat';
  const decays = explorer.words.weighting === 'decay';
  const place = (d) => (value) => { explorer.query[d] = value; };
  const reach = Math.max(1, ...cloudKeys().flat().map(Math.abs));
  const range = { min: -reach, max: reach, step: reach / 100 };
  return [
    choice('explore-metric', 'Metric',
      ['dot', 'layer-change', 'flat', 'jacobian', 'key-covariance', 'random'], 'metric'),
    metric === 'key-covariance' ? null
      : choice('explore-form', 'Form', ['distance', 'product'], 'form'),
    diagonal.includes(metric)
      ? choice('explore-normalize', 'Normalise', ['max', 'mean', 'none'], 'normalize') : null,
    choice('explore-weighting', 'Weighting', ['softmax', 'relu2', 'identity', 'linear', 'decay'],
      'weighting'),
    decays ? slider('explore-rate', 'Kept of a weight, a key further back',
      { min: 0.5, max: 1, step: 0.01 }, explorer.rate, (x) => { explorer.rate = x; },
      (x) => digits(x, 2)) : null,
    decays ? labelled('Weight', select('explore-content',
      [['no', 'age alone'], ['yes', 'age times the score']], explorer.content,
      (value) => { explorer.content = value; ask(); })) : null,
    labelled('Keys', select('explore-cloud', clouds, explorer.cloud, (value) => {
      explorer.cloud = value;
      refreshExplorer();
    })),
    slider('explore-x', 'Query, first coordinate', range, explorer.query[0], place(0),
      (x) => digits(x, 2)),
    slider('explore-y', 'Query, second coordinate', range, explorer.query[1], place(1),
      (x) => digits(x, 2)),
    labelled('Scale', select('explore-scaling',
      [['own', 'chosen'], ['standard', 'the standard'],
        ...(metric === 'key-covariance' ? [['auto', 'as concentrated as dot']] : [])],
      explorer.scaling, (value) => { explorer.scaling = value; refreshExplorer(); })),
    explorer.scaling === 'own' ? slider('explore-scale', 'c', { min: -1, max: 1.5, step: 0.05 },
      Math.log10(explorer.scale), (x) => { explorer.scale = 10 ** x; },
      (x) => digits(10 ** x, 2)) : null,
    metric === 'key-covariance' ? slider('explore-ridge', 'Ridge', { min: -6, max: 1, step: 0.25 },
      explorer.ridge, (x) => { explorer.ridge = x; }, (x) => digits(10 ** x, 2)) : null,
    metric === 'key-covariance' ? slider('explore-prior', 'Prior', { min: 0, max: 64, step: 1 },
      explorer.prior, (x) => { explorer.prior = x; }, (x) => digits(x)) : null,
    estimates ? slider('explore-change-x', 'Change of the values, first coordinate',
      { min: 0, max: 2, step: 0.05 }, explorer.change[0], (x) => { explorer.change[0] = x; },
      (x) => digits(x, 2)) : null,
    estimates ? slider('explore-change-y', 'Change of the values, second coordinate',
      { min: 0, max: 2, step: 0.05 }, explorer.change[1], (x) => { explorer.change[1] = x; },
      (x) => digits(x, 2)) : null,
    metric === 'random' ? slider('explore-seed', 'Seed', { min: 0, max: 20, step: 1 },
      explorer.seed, (x) => { explorer.seed = x; }, (x) => digits(x)) : null,
  ];
}

/// The query goes where the pointer is, and a step with an arrow key.
function movable(holder) {
  const moveTo = (point) => {
    explorer.query = point.map((x) => Math.round(1000 * x) / 1000);
    for (const [id, d] of [['explore-x', 0], ['explore-y', 1]]) {
      const control = document.getElementById(id);
      control.value = explorer.query[d];
      control.previousSibling.querySelector('output').textContent = digits(explorer.query[d], 2);
    }
    plane().replaceWith(explorerPlane());
    ask();
  };
  const plane = () => holder.querySelector('svg');
  const follow = (event) => {
    const rect = plane().getBoundingClientRect();
    const box = frameOf([...cloudKeys(), [0, 0]]);
    moveTo(fromPlane(box, ((event.clientX - rect.left) / rect.width) * planeSize,
      ((event.clientY - rect.top) / rect.height) * planeSize));
  };
  holder.addEventListener('pointerdown', (event) => {
    holder.setPointerCapture(event.pointerId);
    follow(event);
  });
  holder.addEventListener('pointermove', (event) => {
    if (holder.hasPointerCapture(event.pointerId)) follow(event);
  });
  holder.addEventListener('keydown', (event) => {
    const step = frameOf([...cloudKeys(), [0, 0]]).reach / 25;
    const by = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step],
      ArrowDown: [0, -step] }[event.key];
    if (!by) return;
    event.preventDefault();
    moveTo([explorer.query[0] + by[0], explorer.query[1] + by[1]]);
  });
  return holder;
}

const isServed = document.documentElement.dataset.place === 'server';

function explorerSection() {
  if (!isServed) {
    return sectionOf('explorer', 'Explorer', '', h('div', { class: 'note' }, h('p', {},
      'Here one can move a query and turn the ridge, the normalising, the metric, the weighting ' +
      'and the scale, and see the ellipse, the weights and the concentration change. The library ' +
      'computes them, so it needs the library: run ', h('code', {}, 'foci serve FOLDER'),
      ' on the folder this page lies in, and open the address that it prints.')));
  }
  const plane = movable(h('div', {
    id: 'explorer-plane', tabindex: 0, role: 'application',
    'aria-label': 'Query and keys: arrow keys move the query',
  }));
  const section = sectionOf('explorer', 'Explorer',
    'Move the query (drag, or use the arrow keys) and change the mechanism: the library computes ' +
    'the weights anew. Values change from the layer below by what the sliders say, which is what ' +
    'layer-change and flat measure.',
    h('div', { class: 'explorer' },
      h('div', { id: 'explorer-controls', class: 'controls' }, explorerControls().filter(Boolean)),
      h('div', {}, plane, h('p', { id: 'explorer-fault', class: 'fault', role: 'status' }),
        h('dl', { id: 'explorer-facts', class: 'facts' }),
        folded('explorer-weights', 'Numbers', h('div', { id: 'explorer-numbers' })),
        h('p', { class: 'fine' }, 'The same with tensors in a file: ',
          h('code', { id: 'explorer-command' })))));
  queueMicrotask(ask);
  return section;
}
