// The first screen: should this attention be used on this data? The verdict, one table of what
// matters most, and every reason to doubt it.

const groups = [
  'accuracy', 'robustness', 'corruption', 'concentration', 'collapse', 'speed', 'memory',
];

/// The measures the plan calls key, or else the first of every group.
function keyMeasures() {
  const chosen = results.measures.filter((measure) => measure.key);
  if (chosen.length > 0) return chosen;
  return groups.map((group) => results.measures.find((measure) => measure.group === group))
    .filter(Boolean);
}

/// The interval of a difference on the column's own scale, zero in the middle.
function intervalMark(against, widest) {
  if (against.low === null || against.high === null || !(widest > 0)) return null;
  const at = (value) => 40 + 36 * Math.max(-1, Math.min(1, value / widest));
  return s('svg', { class: 'interval', viewBox: '0 0 80 14', 'aria-hidden': 'true' },
    s('path', { d: 'M40 1V13', class: 'zero' }),
    s('path', { d: `M${at(against.low)} 7H${at(against.high)}`, class: 'span' }),
    s('circle', { cx: at(against.difference), cy: 7, r: 3 }));
}

function widestOf(measure) {
  let widest = 0;
  for (const against of measure.against.values()) {
    for (const value of [against.low, against.high]) {
      widest = Math.max(widest, Math.abs(value ?? 0));
    }
  }
  return widest;
}

/// A sign at a number that some flag doubts; which, for those who point at it or hear it.
function doubtMark(measure, name) {
  const names = [...new Set((measure.flagged.get(name) || []).flat())];
  if (names.length === 0) return null;
  const text = `doubted: ${names.join(', ')}`;
  return h('span', { class: 'doubted', title: text }, ` ${doubt}`,
    h('span', { class: 'unseen' }, ` ${text}`));
}

function measureCell(measure, mechanism) {
  const [mean, deviation] = meanParts(measure, mechanism.name);
  const value = h('span', { class: 'value' }, mean, ' ', h('small', {}, deviation),
    doubtMark(measure, mechanism.name));
  const against = measure.against.get(mechanism.name);
  if (!against) {
    return value;
  }
  const sign = verdictSigns[against.verdict] || verdictSigns.unknown;
  const words = (against.words || verdictWords[against.verdict] || verdictWords.unknown)
    .replace(/^no difference/, 'no\u00a0difference');
  return [
    value,
    h('span', { class: `words ${verdictWords[against.verdict] ? against.verdict : 'unknown'}`,
      title: againstText(against, measure.unit) },
      h('span', { class: 'sign', 'aria-hidden': 'true' }, sign), '\u00a0', words),
    intervalMark(against, widestOf(measure)),
    h('span', { class: 'unseen' }, againstText(against, measure.unit)),
  ];
}

function measureHead(measure) {
  return [
    h('span', { title: measure.about || null }, titleOf(measure)),
    h('small', { class: 'samples' }, samplesText(measure)),
    h('small', {}, betterText[measure.better]),
  ];
}

function kindOf(mechanism) {
  if (mechanism === baseline()) return h('span', { class: 'tag' }, 'baseline');
  return mechanism.control ? h('span', { class: 'tag' }, 'control') : null;
}

/// Mechanisms down, measures across; on a narrow screen a card a mechanism.
function measuresTable(caption, measures) {
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption },
    h('table', { class: 'answer' },
      h('caption', {}, caption),
      h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Mechanism'),
        measures.map((measure) => h('th', { scope: 'col' }, measureHead(measure))))),
      h('tbody', {}, results.mechanisms.map((mechanism) => h('tr', {},
        h('th', { scope: 'row' }, named(mechanism.name), kindOf(mechanism),
          h('small', {}, mechanism.about)),
        measures.map((measure) => h('td', { 'data-measure': [titleOf(measure), samplesText(measure)].filter(Boolean).join(', ') },
          measureCell(measure, mechanism))))))));
}

/// Every flag once, with the measures it stands at unless it stands at the whole comparison.
function allFlags() {
  const seen = new Map();
  const add = (flag, title) => {
    const name = flag.name + flag.means;
    if (!seen.has(name)) seen.set(name, { ...flag, whole: false, titles: [] });
    const kept = seen.get(name);
    if (title === null) kept.whole = true;
    else kept.titles.push(title);
  };
  results.flags.filter((flag) => flag.measures.length === 0).forEach((flag) => add(flag, null));
  results.measures.forEach((m) => m.flags.forEach((flag) => add(flag, m.title)));
  return [...seen.values()];
}

function flagPlaces(flag) {
  if (flag.whole || flag.titles.length === 0) return '';
  if (flag.titles.length > 3) return ` (${counted(flag.titles.length, 'measure')})`;
  return ` (${flag.titles.join('; ')})`;
}

function flagList() {
  const flags = allFlags();
  if (flags.length === 0) return null;
  return h('ul', { class: 'flags' }, flags.map((flag) => h('li', {},
    h('strong', {}, flag.name), flagPlaces(flag), ': ', unbroken(sentence(flag.means, ' ').trim()),
    flag.action ? h('span', { class: 'do' }, ' ', unbroken(sentence(flag.action, 'To do: ')))
      : null)));
}

function progress() {
  const done = results.runs.filter((run) => run.state === 'done').length;
  const failed = results.runs.filter((run) => run.state === 'failed');
  const parts = [];
  if (results.state === 'running') {
    const now = results.runs.find((run) => run.state === 'running');
    const doing = now
      ? ` Now: ${now.mechanism}, seed ${now.seed ?? '?'}${now.stage ? `, ${now.stage}` : ''}.` : '';
    parts.push(h('div', { class: 'note running', role: 'status' },
      h('p', {}, h('strong', {}, 'Still running. '),
        `${done} of ${counted(results.runs.length, 'run')} done; what is missing is shown as ` +
        `${dash} and the rest may change.${doing}`),
      h('progress', { value: done, max: Math.max(1, results.runs.length),
        'aria-label': 'runs done' })));
  }
  if (results.state === 'stopped') {
    parts.push(h('div', { class: 'note running', role: 'status' },
      h('p', {}, h('strong', {}, 'Stopped. '),
        `${done} of ${counted(results.runs.length, 'run')} done; the same command goes on.`)));
  }
  if (failed.length > 0) {
    parts.push(h('div', { class: 'note failed' },
      h('p', {}, h('strong', {}, `${counted(failed.length, 'run')} failed`),
        failed.length === 1 ? ' and counts nowhere:' : ' and count nowhere:'),
      h('ul', {}, failed.map((run) => h('li', {},
        `${run.mechanism}, seed ${run.seed ?? '?'}: ${run.error || 'no reason given'}`)))));
  }
  return parts;
}

function kicker() {
  const minutes = results.seconds === null ? '' : secondsText(results.seconds);
  const peak = results.peakBytes === null ? '' : `${bytesText(results.peakBytes)} at most`;
  const seeds = results.seeds.length > 0 ? counted(results.seeds.length, 'seed') : '';
  const epochs = results.epochs === null ? '' : `, ${digits(results.epochs, 2)} epochs`;
  const steps = results.steps === null ? '' : `${counted(results.steps, 'step')} a run${epochs}`;
  return [results.task, asText(results.data.name), asText(results.model.name), seeds, steps,
    minutes, peak].filter(Boolean).join(' · ');
}

/// What holds of an unfinished comparison holds so far.
function headline() {
  const said = results.verdict.headline;
  if (!said) return results.state === 'done' ? results.title : 'No answer yet.';
  if (!['running', 'stopped'].includes(results.state) || /so far|\byet\b/i.test(said)) return said;
  return `So far: ${/^[A-Z][a-z]/.test(said) ? said[0].toLowerCase() + said.slice(1) : said}`;
}

function answerSection() {
  const isSaid = results.verdict.sentences.some((sentence) => /comparison/.test(sentence));
  const count = isSaid ? 0 : results.verdict.comparisons;
  const key = keyMeasures();
  return h('section', { id: 'answer', class: 'answer', 'aria-labelledby': 'answer-title' },
    h('p', { class: 'kicker' }, kicker()),
    h('p', { class: 'question' }, `Should this attention be used on ${
      asText(results.data.name) || 'this data'}?`),
    h('h1', { id: 'answer-title' }, headline()),
    results.verdict.sentences.map((sentence) => h('p', { class: 'sentence' }, sentence)),
    results.demonstration ? h('div', { class: 'note demonstration' }, h('p', {},
      h('strong', {}, 'A demonstration. '),
      unbroken(`It has ${results.demonstrationBecause || 'few seeds or little time'}: read it as ` +
        'what a comparison looks like.'))) : null,
    progress(),
    key.length > 0 ? measuresTable(
      `${results.title}: means over seeds ± their standard deviation, and the paired difference ` +
      `to ${baseline() ? baseline().name : 'the baseline'} with its 95 % interval`, key) : null,
    count ? h('p', { class: 'fine' }, `${counted(count, 'comparison')} ${
      count === 1 ? 'was' : 'were'} made. Of intervals at 95 % about one in twenty misses by ` +
      `chance: here about ${digits(count / 20, 2)}.`) : null,
    flagList());
}
