// What results.json holds, with every part in the type the page expects: a part that is missing or
// of another kind is empty, and a number that is none is null.

const asList = (value) => (Array.isArray(value) ? value : []);
const asRecord = (value) =>
  value !== null && typeof value === 'object' && !Array.isArray(value) ? value : {};
const asText = (value) => (typeof value === 'string' ? value : '');
const asNumber = (value) => (typeof value === 'number' && Number.isFinite(value) ? value : null);
const asNumbers = (value) => asList(value).map(asNumber);
const hasOwn = (record, name) => Object.prototype.hasOwnProperty.call(record, name);

/// A record of mechanisms, each value read by `read`; a Map, so that no name is special.
function byMechanism(value, read) {
  return new Map(Object.entries(asRecord(value)).map(([name, inner]) => [name, read(inner)]));
}

function readAgainst(value) {
  const record = asRecord(value);
  return {
    difference: asNumber(record.difference),
    low: asNumber(record.low),
    high: asNumber(record.high),
    seeds: asNumber(record.seeds),
    verdict: asText(record.verdict),
    words: asText(record.words),
    p: asNumber(record.p),
    pHolm: asNumber(record.p_holm),
  };
}

const readFlags = (value) =>
  asList(value).map(asRecord).map((flag) => ({
    name: asText(flag.name),
    means: asText(flag.means),
    action: asText(flag.do),
    measures: asList(flag.measures).map(asText),
  }));

function readMeasure(record) {
  return {
    name: asText(record.name),
    title: asText(record.title) || asText(record.name),
    group: asText(record.group),
    unit: asText(record.unit),
    better: asText(record.better),
    about: asText(record.about),
    key: record.key === true,
    decides: record.decides === true,
    n: asNumber(record.n),
    values: byMechanism(record.values, asNumbers),
    mean: byMechanism(record.mean, asNumber),
    deviation: byMechanism(record.deviation, asNumber),
    against: byMechanism(record.against, readAgainst),
    flags: readFlags(record.flags),
    flagged: byMechanism(record.flagged, (seeds) =>
      asList(seeds).map((names) => asList(names).map(asText))),
  };
}

function readTraining(value) {
  return byMechanism(value, (runs) =>
    asList(runs).map(asRecord).map((run) => ({
      seed: asNumber(run.seed),
      step: asNumbers(run.step),
      loss: asNumbers(run.loss),
    })));
}

function readCurves(value) {
  const curves = asRecord(value);
  return {
    training: readTraining(curves.training),
    robustness: asList(curves.robustness).map(asRecord).map((curve) => ({
      attack: asText(curve.attack),
      norm: asText(curve.norm),
      unit: asText(curve.unit),
      eps: asNumbers(curve.eps),
      mean: byMechanism(curve.mean, asNumbers),
      values: byMechanism(curve.values, (rows) => asList(rows).map(asNumbers)),
    })),
    corruptions: asList(curves.corruptions).map(asRecord).map((curve) => ({
      name: asText(curve.name),
      unit: hasOwn(curve, 'unit') ? asText(curve.unit) : 'share',
      severity: asNumbers(curve.severity),
      mean: byMechanism(curve.mean, asNumbers),
      values: byMechanism(curve.values, (rows) => asList(rows).map(asNumbers)),
    })),
  };
}

/// A list by layer for each seed, null where a run is not done, becomes one by seed for each layer.
function turned(value) {
  const seeds = asList(value).map(asNumbers);
  const layers = Math.max(0, ...seeds.map((list) => list.length));
  return Array.from({ length: layers }, (_, i) => seeds.map((list) => list[i] ?? null));
}

function readRun(record) {
  return {
    mechanism: asText(record.mechanism),
    seed: asNumber(record.seed),
    state: asText(record.state),
    folder: asText(record.folder),
    stage: asText(record.stage),
    step: asNumber(record.step),
    steps: asNumber(record.steps),
    perSecond: asNumber(record.per_second),
    seconds: asNumber(record.seconds),
    error: asText(record.error),
  };
}

function readMap(record) {
  return {
    image: asNumber(record.image),
    label: asText(record.label),
    side: asNumber(record.side) || 0,
    height: asNumber(record.height) || asNumber(record.side) || 0,
    channels: asNumber(record.channels) || 1,
    pixels: asText(record.pixels),
    tokens: asNumber(record.tokens) || 0,
    grid: asNumber(record.grid) || 0,
    prefix: asNumber(record.prefix) || 0,
    words: asList(record.words).map(asText),
    weights: byMechanism(record.weights, (value) => {
      const weights = asRecord(value);
      return {
        layers: asNumber(weights.layers) || 0,
        heads: asNumber(weights.heads) || 0,
        data: asText(weights.data),
      };
    }),
  };
}

const asPoints = (value) =>
  asList(value).map(asNumbers).filter((p) => p.length === 2 && p[0] !== null && p[1] !== null);

function readEllipse(record) {
  const metric = asList(record.metric).map(asNumbers);
  const whole = metric.length === 2 && metric.every((row) => row.length === 2);
  const query = asPoints([record.query])[0];
  return {
    mechanism: asText(record.mechanism),
    layer: asNumber(record.layer),
    head: asNumber(record.head),
    axes: asNumbers(record.axes),
    keys: asPoints(record.keys),
    query: query || null,
    metric: whole && metric.flat().every((x) => x !== null) ? metric : null,
    weights: asNumbers(record.weights),
  };
}

function readMechanism(record, index) {
  return {
    name: asText(record.name) || `mechanism ${index + 1}`,
    about: asText(record.about),
    baseline: record.baseline === true,
    control: record.control === true,
    words: asRecord(record.words),
  };
}

function readResults(raw) {
  const all = asRecord(raw);
  const verdict = asRecord(all.verdict);
  return {
    raw: all,
    title: asText(all.title) || 'A comparison of attention',
    task: asText(all.task),
    state: asText(all.state),
    demonstration: all.demonstration === true,
    demonstrationBecause: asText(all.demonstration_because),
    steps: asNumber(all.steps),
    epochs: asNumber(all.epochs),
    seconds: asNumber(all.seconds),
    peakBytes: asNumber(all.peak_bytes),
    budgetSeconds: asNumber(all.budget_seconds),
    command: asText(all.command),
    commit: asText(all.commit),
    machine: asText(all.machine),
    environment: asRecord(all.environment),
    data: asRecord(all.data),
    model: asRecord(all.model),
    plan: asRecord(all.plan),
    seeds: asNumbers(all.seeds),
    mechanisms: asList(all.mechanisms).map(asRecord).map(readMechanism),
    runs: asList(all.runs).map(asRecord).map(readRun),
    measures: asList(all.measures).map(asRecord).map(readMeasure),
    verdict: {
      headline: asText(verdict.headline),
      sentences: asList(verdict.sentences).map(asText).filter(Boolean),
      comparisons: asNumber(verdict.comparisons),
    },
    curves: readCurves(all.curves),
    layers: asList(all.layers).map(asRecord).map((layer) => ({
      name: asText(layer.name),
      title: asText(layer.title) || asText(layer.name),
      about: asText(layer.about),
      mean: byMechanism(layer.mean, asNumbers),
      values: byMechanism(layer.values, turned),
    })),
    maps: asList(all.maps).map(asRecord).map(readMap),
    ellipses: asList(all.ellipses).map(asRecord).map(readEllipse),
    figures: asList(all.figures).map(asRecord).map((figure) => ({
      file: asText(figure.file),
      title: asText(figure.title),
    })),
    flags: readFlags(all.flags),
    reproduce: asText(all.reproduce),
    reproduceFlags: asText(all.reproduce_flags),
  };
}
