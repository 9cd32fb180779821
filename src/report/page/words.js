// Numbers and verdicts in words: units, signs, and what an interval says.

const dash = '–';
const doubt = '⚑';
const minus = (text) => text.replace(/-/g, '−');
const digits = (value, most = 3) =>
  minus(value.toLocaleString('en', { maximumSignificantDigits: most }));
const fixed = (value, places) =>
  minus(value.toLocaleString('en', {
    minimumFractionDigits: places, maximumFractionDigits: places,
  }));

function bytesText(value) {
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
  let at = 0;
  let size = value;
  for (; Math.abs(size) >= 1024 && at + 1 < units.length; ++at) size /= 1024;
  return `${digits(size)} ${units[at]}`;
}

function secondsText(value) {
  if (Math.abs(value) < 1e-3) return `${digits(value * 1e6)} µs`;
  if (Math.abs(value) < 1) return `${digits(value * 1e3)} ms`;
  if (Math.abs(value) < 120) return `${digits(value)} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 120) return `${minutes} min ${Math.round(value - 60 * minutes)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/// A value of a measure, with its unit.
function valueText(value, unit) {
  if (value === null || value === undefined) return dash;
  if (unit === 'share') return `${fixed(100 * value, 1)} %`;
  if (unit === 'bytes') return bytesText(value);
  if (unit === 'seconds' || unit === 's') return secondsText(value);
  return unit && unit !== '1' ? `${digits(value, 4)} ${unit}` : digits(value, 4);
}

/// How far values lie apart: shares in points, signed when asked.
function spreadText(value, unit) {
  if (value === null || value === undefined) return '';
  if (unit === 'share') return fixed(100 * value, 1);
  if (unit === 'bytes') return bytesText(value);
  if (unit === 'seconds' || unit === 's') return secondsText(value);
  return digits(value, 2);
}

const signed = (text, value) => (value > 0 ? `+${text}` : text);

function differenceText(value, unit) {
  if (value === null) return dash;
  const text = signed(spreadText(value, unit), value);
  return unit === 'share' ? `${text} points` : text;
}

const verdictWords = {
  same: 'no difference shown',
  better: 'better',
  worse: 'worse',
  different: 'different',
  unknown: 'cannot be said',
};
const verdictSigns = { same: '=', better: '▲', worse: '▼', different: '≠', unknown: '?' };

function againstText(against, unit) {
  if (!against || against.difference === null) return '';
  const interval = against.low === null || against.high === null
    ? ''
    : `, 95 % interval ${signed(spreadText(against.low, unit), against.low)} to ` +
      `${signed(spreadText(against.high, unit), against.high)}`;
  const seeds = against.seeds === null ? '' : `, ${against.seeds} ${plural(against.seeds, 'seed')}`;
  const holm = against.pHolm === null ? '' : ` (${digits(against.pHolm, 2)} after Holm)`;
  const chance = against.p === null ? '' : `, p ${digits(against.p, 2)}${holm}`;
  return `difference ${differenceText(against.difference, unit)}${interval}${seeds}${chance}`;
}

const plural = (count, word) => (count === 1 ? word : `${word}s`);
const counted = (count, word) => `${digits(count, 6)} ${plural(count, word)}`;

/// With a stop at its end, and a capital unless something stands before it.
function sentence(text, before) {
  if (!text) return '';
  const capital = !before && /^[a-z]+ /.test(text);
  const start = capital ? text[0].toUpperCase() + text.slice(1) : text;
  return `${before}${start}${/[.!?]$/.test(text) ? '' : '.'}`;
}

/// A text whose flags of the command, "(--seeds 10)", stay on one line each.
const unbroken = (text) => text.split(/(\(?--[a-z][a-z-]*(?: \d[\w.]*)?\)?)/)
  .map((part, i) => (i % 2 === 1 ? h('span', { class: 'unbroken' }, part) : part));

const betterText = { higher: 'higher is better', lower: 'lower is better' };

/// Decimals that a number of this size deserves: three figures of it in all.
const placesOf = (value) =>
  (value === 0 ? 2 : Math.max(0, Math.min(6, 2 - Math.floor(Math.log10(Math.abs(value))))));

/// Mean and standard deviation over seeds, as two texts with the same decimals.
function meanParts(measure, name) {
  const mean = measure.mean.get(name) ?? null;
  const deviation = measure.deviation.get(name) ?? null;
  const { unit } = measure;
  if (mean === null) return [dash, ''];
  if (['share', 'bytes', 'seconds', 's'].includes(unit)) {
    return [valueText(mean, unit), deviation === null ? '' : `± ${spreadText(deviation, unit)}`];
  }
  const places = placesOf(mean);
  return [fixed(mean, places), deviation === null ? '' : `± ${
    deviation > 0 && deviation < 0.5 * 10 ** -places ? digits(deviation, 1)
      : fixed(deviation, places)}`];
}

const meanText = (measure, name) => meanParts(measure, name).filter(Boolean).join(' ');

/// The unit where it is not part of every number.
const unitName = (unit) => (['share', 'bytes', 'seconds', 's', '1'].includes(unit) ? '' : unit);

const titleOf = (measure) => [measure.title,
  measure.title.endsWith(` ${measure.unit}`) ? '' : unitName(measure.unit)]
  .filter(Boolean).join(', ');

/// How many samples a score is over; time and memory are over none.
function samplesText(measure) {
  if (!measure.n || ['speed', 'memory'].includes(measure.group)) return '';
  return results.task === 'images' ? counted(measure.n, 'image') : `n = ${digits(measure.n, 6)}`;
}

/// A tick of an axis, with the decimals that tell it from the next; shares as percents.
function axisText(value, unit, ticks) {
  if (['bytes', 'seconds', 's'].includes(unit)) return valueText(value, unit);
  const factor = unit === 'share' ? 100 : 1;
  const step = ticks && ticks.length > 1 ? factor * Math.abs(ticks[1].value - ticks[0].value) : 1;
  const places = Math.max(0, Math.min(8, -Math.floor(Math.log10(step) + 1e-9)));
  return `${fixed(factor * value, places)}${unit === 'share' ? ' %' : ''}`;
}

/// RFC 4180; a text that a spreadsheet would run as a formula gets an apostrophe before it.
function csvCell(value) {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number') return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

function csvOf(results) {
  const rows = [['measure', 'group', 'unit', 'mechanism', 'seed', 'value', 'flags']];
  for (const measure of results.measures) {
    for (const mechanism of results.mechanisms) {
      const values = measure.values.get(mechanism.name) || [];
      values.forEach((value, i) => rows.push([
        measure.name, measure.group, measure.unit, mechanism.name, results.seeds[i] ?? i, value,
        ((measure.flagged.get(mechanism.name) || [])[i] || []).join('; '),
      ]));
    }
  }
  return rows.map((row) => row.map(csvCell).join(',')).join('\r\n') + '\r\n';
}
