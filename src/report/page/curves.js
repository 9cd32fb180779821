// Accuracy, robustness, corruption, what happens by layer, speed, memory and training, as figures.

const namesOf = (map) => new Set(map.keys());
const percent = (value) => (value === null ? dash : `${fixed(100 * value, 1)} %`);
const ticksOf = (unit) => (value, index, ticks) => axisText(value, unit, ticks);
const ticksAt = (places) => ({
  type: 'linear',
  afterBuildTicks: (scale) => { scale.ticks = places.map((value) => ({ value })); },
});
const seedNames = () => results.seeds.map((seed) => `seed ${seed}`);

/// One measure: a row a mechanism, its seeds as rings, their mean with one standard deviation.
function stripFigure(measure) {
  const rows = () => shown().filter((mechanism) => measure.values.has(mechanism.name));
  const config = () => {
    const there = rows();
    const marks = there.map((mechanism) => markOf(mechanism.name));
    const means = there.map((mechanism) => measure.mean.get(mechanism.name) ?? null);
    return {
      type: 'line',
      data: {
        labels: there.map((mechanism) => mechanism.name),
        datasets: [{
          label: measure.title,
          data: means,
          showLine: false,
          borderColor: marks.map((mark) => mark.colour),
          backgroundColor: marks.map((mark) => mark.colour),
          pointStyle: marks.map((mark) => mark.marker),
          pointRadius: 6,
          pointBorderWidth: 2,
          pointHoverRadius: 8,
          ends: there.map((mechanism, i) => {
            const deviation = measure.deviation.get(mechanism.name) ?? null;
            return deviation === null || means[i] === null
              ? null : around(measure, means[i], deviation);
          }),
          dots: there.map((mechanism) => measure.values.get(mechanism.name)),
        }],
      },
      options: {
        indexAxis: 'y',
        layout: { padding: { right: 14 } },
        interaction: { mode: 'index', axis: 'y', intersect: false },
        scales: {
          x: axis('', { grace: '12%', ...rangeOf(measure, there),
            ticks: { maxTicksLimit: 5, callback: ticksOf(measure.unit) } }),
          y: axis('', { offset: true, ticks: { autoSkip: false } }),
        },
        plugins: { tooltip: { callbacks: {
          label: (item) => ` ${[meanText(measure, item.label), unitName(measure.unit)]
            .filter(Boolean).join(' ')}`,
          footer: (items) => againstText(measure.against.get(items[0].label), measure.unit)
            .split(', ').join('\n'),
        } } },
      },
    };
  };
  return figure({
    id: `measure-${slug(measure.name)}`,
    title: titleOf(measure),
    about: [measure.about, samplesText(measure), betterText[measure.better] || '',
      measure.decides ? 'the verdict rests on it' : '']
      .map((text) => sentence(text, '')).filter(Boolean).join(' '),
    height: 64 + 42 * Math.max(1, rows().length),
    config,
    table: () => measureTable(measure),
  });
}

/// An axis that holds all of them; where they are one number, with some room around it.
function reach(all) {
  if (all.length === 0) return {};
  const least = Math.min(...all), most = Math.max(...all);
  const room = least < most ? 0 : Math.abs(least) / 10;
  return { suggestedMin: least - room, suggestedMax: most + room };
}

/// Shares, speeds and memory are never below 0, nor is what is drawn of them.
const isPositive = (measure) =>
  measure.unit === 'share' || ['speed', 'memory'].includes(measure.group);

/// One standard deviation to either side.
const around = (measure, mean, deviation) =>
  [isPositive(measure) ? Math.max(0, mean - deviation) : mean - deviation, mean + deviation];

/// Dots beside the means must fit too.
function rangeOf(measure, there) {
  const all = there.flatMap((mechanism) => {
    const mean = measure.mean.get(mechanism.name) ?? null;
    const deviation = measure.deviation.get(mechanism.name) ?? 0;
    return [...(measure.values.get(mechanism.name) || []),
      ...(mean === null ? [] : around(measure, mean, deviation))];
  }).filter((value) => value !== null);
  const least = Math.min(...all), room = (Math.max(...all) - least) / 8;
  return { ...reach(all), ...(isPositive(measure) && least < room ? { min: 0 } : {}) };
}

function measureTable(measure) {
  const head = ['Mechanism', ...seedNames(), 'mean ± deviation', 'against the baseline',
    'verdict'];
  const rows = results.mechanisms.map((mechanism) => {
    const against = measure.against.get(mechanism.name);
    const values = measure.values.get(mechanism.name) || [];
    return [
      mechanism.name,
      ...results.seeds.map((_, i) => valueText(values[i] ?? null, measure.unit) +
        (((measure.flagged.get(mechanism.name) || [])[i] || []).length > 0 ? ` ${doubt}` : '')),
      meanText(measure, mechanism.name),
      againstText(against, measure.unit) || dash,
      against ? against.words || verdictWords[against.verdict] || '' : dash,
    ];
  });
  return tableOf(measure.title, head, rows);
}

/// A table of points by mechanism: the mean, and its seeds behind it.
function pointsTable(caption, first, points, means, values, text) {
  const names = results.mechanisms.map((mechanism) => mechanism.name).filter((n) => means.has(n));
  return tableOf(caption, [first, ...names], points.map((point, i) => [
    point,
    ...names.map((name) => {
      const seeds = ((values.get(name) || [])[i] || []).filter((value) => value !== null);
      const mean = text((means.get(name) || [])[i] ?? null);
      return seeds.length > 1 ? `${mean} (${seeds.map(text).join(', ')})` : mean;
    }),
  ]));
}

/// Whiskers must fit too.
function reachOf(values) {
  const all = [...values].filter(([name]) => !hidden.has(name)).flatMap(([, rows]) => rows.flat())
    .filter((value) => value !== null);
  return reach(all);
}

function lineFigure(parts) {
  const names = namesOf(parts.mean);
  return figure({
    ...parts,
    names,
    config: () => ({
      type: 'line',
      data: {
        labels: parts.at ? undefined : parts.points,
        datasets: shown().filter((mechanism) => names.has(mechanism.name)).map((mechanism) => {
          const mean = parts.mean.get(mechanism.name);
          return lineSet(mechanism.name,
            parts.at ? mean.map((y, i) => ({ x: parts.at[i], y })) : mean,
            parts.values.get(mechanism.name));
        }),
      },
      options: {
        interaction: { mode: 'index', intersect: false },
        scales: {
          x: axis(parts.x, parts.at ? ticksAt(parts.at) : { offset: true }),
          y: axis(parts.y, { ...reachOf(parts.values), ...parts.range,
            ticks: { maxTicksLimit: 7, callback: ticksOf(parts.unit) } }),
        },
        plugins: { tooltip: { callbacks: {
          title: (items) => (items[0] ? `${parts.x} ${parts.points[items[0].dataIndex]}` : ''),
          label: (item) => ` ${item.dataset.label}: ${parts.text(item.parsed.y)}`,
        } } },
      },
    }),
    table: () => pointsTable(parts.title, parts.x, parts.points, parts.mean, parts.values,
      parts.text),
  });
}

const spreadAbout = () => (results.seeds.length > 1
  ? 'Lines are means over seeds; whiskers reach from the lowest seed to the highest.' : '');

const normWords = {
  linf: 'largest change of a pixel', l2: 'length of the change', l1: 'summed change',
};

function robustnessFigure(curve, index) {
  const unit = curve.unit ? ` (${curve.unit})` : '';
  return lineFigure({
    id: `robustness-${index}`,
    title: `Accuracy under ${curve.attack || 'attack'}`,
    about: [curve.norm ? `Norm ${curve.norm}: ${normWords[curve.norm] || 'as the plan says'}.` : '',
      spreadAbout()].filter(Boolean).join(' '),
    points: curve.eps.map((eps) => (eps === null ? dash : digits(eps))),
    at: curve.eps,
    unit: 'share',
    mean: curve.mean,
    values: curve.values,
    x: `eps${unit}`,
    y: 'still classified correctly',
    range: { min: 0, suggestedMax: 1 },
    text: percent,
  });
}

let severity = 'mean';

/// Of one corruption, at the chosen severity or over all of them.
function corruptionOf(curve, name) {
  const mean = curve.mean.get(name) || [];
  const values = curve.values.get(name) || [];
  const at = curve.severity.indexOf(Number(severity));
  if (severity !== 'mean') return { mean: mean[at] ?? null, seeds: values[at] || [] };
  const there = mean.filter((value) => value !== null);
  const seeds = (values[0] || []).map((_, seed) => {
    const all = values.map((row) => row[seed] ?? null);
    return all.includes(null) ? null : all.reduce((a, b) => a + b, 0) / all.length;
  });
  return {
    mean: there.length > 0 ? there.reduce((a, b) => a + b, 0) / there.length : null, seeds,
  };
}

const plainName = (name) => name.replace(/_/g, ' ');

function corruptionFigure() {
  const curves = results.curves.corruptions;
  const severities = [...new Set(curves.flatMap((curve) => curve.severity))]
    .filter((value) => value !== null).sort((a, b) => a - b);
  if (severity !== 'mean' && !severities.includes(Number(severity))) severity = 'mean';
  const names = new Set(curves.flatMap((curve) => [...curve.mean.keys()]));
  const found = (name) => curves.map((curve) => corruptionOf(curve, name));
  const mostOf = () => Math.max(0, ...shown().filter((mechanism) => names.has(mechanism.name))
    .flatMap((mechanism) => found(mechanism.name).flatMap((point) => point.seeds)));
  const unit = curves[0].unit;
  const first = results.measures.find((one) => one.group === 'corruption');
  const score = first ? first.title.split(/ under /i)[0] : '';
  const title = unit === 'share' ? 'Accuracy on corrupted data'
    : `${score || 'Score'} on corrupted data`;
  const text = (value) => valueText(value, unit);
  const options = [['mean', 'mean of all'],
    ...severities.map((value) => [String(value), String(value)])];
  return figure({
    id: 'corruptions',
    wide: true,
    title,
    about: [severities.length === 1 && severities[0] > 0 ? `Severity ${severities[0]}.` : '',
      spreadAbout().replace('Lines', 'Bars'),
      first && first.better === 'lower' ? 'Lower is better.' : ''].filter(Boolean).join(' '),
    names,
    height: 300,
    controls: severities.length < 2 ? null : h('div', { class: 'controls' }, labelled('Severity',
      select('severity', options, severity, (value) => { severity = value; render(); }))),
    config: () => ({
      type: 'bar',
      data: {
        labels: curves.map((curve) => plainName(curve.name)),
        datasets: shown().filter((mechanism) => names.has(mechanism.name)).map((mechanism) => {
          const points = found(mechanism.name);
          return {
            ...lineSet(mechanism.name, points.map((point) => point.mean),
              points.map((point) => point.seeds)),
            borderWidth: 1,
            whiskerColour: paint('--soft'),
          };
        }),
      },
      options: {
        interaction: { mode: 'index', intersect: false },
        scales: {
          x: axis('', { ticks: { maxRotation: 60 } }),
          y: axis(unit === 'share' ? 'classified correctly' : '', {
            min: 0, suggestedMax: mostOf(), ticks: { callback: ticksOf(unit) },
          }),
        },
        plugins: { tooltip: { callbacks: {
          label: (item) => ` ${item.dataset.label}: ${text(item.parsed.y)}`,
        } } },
      },
    }),
    table: () => {
      const mean = new Map([...names].map((name) => [name, found(name).map((p) => p.mean)]));
      const values = new Map([...names].map((name) => [name, found(name).map((p) => p.seeds)]));
      return pointsTable(title, 'Corruption', curves.map((curve) => plainName(curve.name)), mean,
        values, text);
    },
  });
}

function layerFigure(layer) {
  const most = Math.max(0, ...[...layer.mean.values()].map((list) => list.length));
  return lineFigure({
    id: `layer-${slug(layer.name)}`,
    title: layer.title,
    about: layer.about || spreadAbout(),
    points: Array.from({ length: most }, (_, i) => String(i)),
    mean: layer.mean,
    values: layer.values,
    x: 'layer',
    y: '',
    range: {},
    text: (value) => (value === null ? dash : digits(value, 5)),
  });
}

const reachOfMeans = (points) => Math.floor(points / 40);

/// Each number becomes the mean of those around it: the noise of single batches goes.
function smoothed(values) {
  const reach = reachOfMeans(values.length);
  return values.map((value, i) => {
    const around = values.slice(Math.max(0, i - reach), i + reach + 1).filter((y) => y !== null);
    return value === null ? null : around.reduce((a, b) => a + b, 0) / around.length;
  });
}

/// By step, the mean over the runs that have it.
function meanLine(lines) {
  const sums = new Map();
  for (const { x, y } of lines.flat()) {
    if (y === null) continue;
    const [sum, count] = sums.get(x) || [0, 0];
    sums.set(x, [sum + y, count + 1]);
  }
  return [...sums].sort((a, b) => a[0] - b[0]).map(([x, [sum, count]]) => ({ x, y: sum / count }));
}

/// Of a mechanism: its runs, thin and pale, and their mean.
function trainingSets(name, runs) {
  const lines = runs.map((run) => smoothed(run.step.map((_, i) => run.loss[i] ?? null))
    .map((y, i) => ({ x: run.step[i], y })));
  const line = (label, data, more) => ({
    ...lineSet(name, data, null), label, pointRadius: 0, pointHoverRadius: 4, ...more,
  });
  const pale = `${hexOf(markOf(name).colour)}59`;
  const seeds = runs.length < 2 ? [] : runs.map((run, i) =>
    line(`${name}, seed ${run.seed ?? '?'}`, lines[i],
      { borderColor: pale, borderWidth: 0.8, borderDash: [], pointHoverRadius: 0, order: 1 }));
  return [...seeds, line(name, meanLine(lines), { borderWidth: 2.2, order: 0 })];
}

function trainingFigure() {
  const training = results.curves.training;
  const names = namesOf(training);
  const sets = () => shown().flatMap((mechanism) =>
    trainingSets(mechanism.name, training.get(mechanism.name) || []));
  const steps = Math.max(1, ...[...training.values()].flat().map((run) => run.loss.length));
  const last = Math.max(1, ...[...training.values()].flat().flatMap((run) => run.step.slice(-1)));
  const around = 2 * reachOfMeans(steps) + 1;
  const ends = () => results.mechanisms.flatMap((mechanism) =>
    (training.get(mechanism.name) || []).map((run) => [
      mechanism.name, String(run.seed ?? dash), String(run.step[run.step.length - 1] ?? dash),
      run.loss.length > 0 && run.loss[0] !== null ? digits(run.loss[0]) : dash,
      run.loss.length > 0 && run.loss[run.loss.length - 1] !== null
        ? digits(run.loss[run.loss.length - 1]) : dash,
    ]));
  return figure({
    id: 'training-loss',
    wide: true,
    title: 'Loss while training',
    about: ['Bold: the mean over seeds. Thin: single runs.',
      around > 1 ? `Each point is the mean of the ${around} around it.` : ''].join(' '),
    names,
    height: 320,
    config: () => ({
      type: 'line',
      data: { datasets: sets() },
      options: {
        interaction: { mode: 'nearest', axis: 'x', intersect: false },
        scales: {
          x: axis('step', { type: 'linear', min: 0, max: last }),
          y: axis('loss', { ticks: { callback: ticksOf('') } }),
        },
        plugins: { tooltip: { callbacks: {
          title: (items) => (items[0] ? `step ${items[0].parsed.x}` : ''),
          label: (item) => ` ${item.dataset.label}: ${digits(item.parsed.y)}`,
        } } },
      },
    }),
    table: () => tableOf('Loss while training',
      ['Mechanism', 'seed', 'steps', 'first loss', 'last loss'], ends()),
  });
}

/// Strips of a group, and what else belongs to it; nothing when there is neither. Where `more`
/// shows the same measures, all but the first few are tables.
function groupSection(id, title, about, kinds, more = [], most = Infinity) {
  const measures = results.measures.filter((measure) => kinds.includes(measure.group));
  if (measures.length + more.length === 0) return null;
  const count = more.length > 0 ? most : Infinity;
  const rest = measures.slice(count);
  return sectionOf(id, title, about,
    h('div', { class: 'figures' }, more, measures.slice(0, count).map(stripFigure)),
    rest.length > 0 ? folded(`${id}-rest`, counted(rest.length, 'more measure'),
      () => rest.map(measureTable)) : null);
}

const layersNamed = (pattern) =>
  results.layers.filter((layer) => pattern.test(layer.name)).map(layerFigure);
const collapses = /cosine|rank|collapse|oversmooth|similar|high_low/;

function groupSections() {
  const rest = results.measures.map((measure) => measure.group)
    .filter((group) => !groups.includes(group));
  const isAccuracy = results.measures.some((m) => m.group === 'accuracy' && m.unit === 'share');
  const curves = results.curves;
  return [
    groupSection('accuracy', isAccuracy ? 'Accuracy' : 'How well it does', 'Rings are single ' +
      'seeds; the filled mark is their mean, its whiskers one standard deviation.', ['accuracy']),
    groupSection('robustness', 'Robustness', 'How much stays right when somebody changes the ' +
      'input on purpose. An attack gives an upper bound: a stronger one may find more.',
      ['robustness'], curves.robustness.map(robustnessFigure), 3),
    groupSection('corruption', 'Corruptions', 'How well it does on corrupted data, though ' +
      'nobody aimed at it: noise, blur and weather, exchanged words, spikes in a series.', ['corruption'],
      curves.corruptions.length > 0 ? [corruptionFigure()] : [], 1),
    groupSection('concentration', 'Concentration', 'Concentration is 1 when a row spreads evenly ' +
      'over its keys and 1/√n when one of n takes all. It is neither good nor bad by itself.',
      ['concentration'], results.layers.filter((layer) => !collapses.test(layer.name))
        .map(layerFigure)),
    groupSection('collapse', 'Collapse', 'Whether tokens grow alike from layer to layer: a ' +
      'cosine near 1 or a low rank says that they do.', ['collapse'], layersNamed(collapses)),
    groupSection('other', 'Other measures', '', rest),
  ].filter(Boolean);
}

const costSection = () =>
  groupSection('cost', 'Speed and memory', 'Measured on the machine named below.',
    ['speed', 'memory']);

const trainingSection = () => (results.curves.training.size === 0 ? null
  : sectionOf('training', 'Training', '', h('div', { class: 'figures' }, trainingFigure())));
