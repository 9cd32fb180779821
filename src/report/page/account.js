// What was done and on what: runs, model, data, plan, environment, the command, and the numbers to
// take away.

function factList(record) {
  const entries = Object.entries(record).filter(([, value]) => value !== null && value !== '' &&
    !(typeof value === 'object' && Object.keys(value).length === 0));
  return h('dl', { class: 'pairs' }, entries.map(([name, value]) => h('div', {},
    h('dt', {}, name.replace(/_/g, ' ')),
    h('dd', {}, factOf(name, value)))));
}

/// As it is told: what is known of the data, and the flags that a model was trained with.
function factsOfData({ made, judged, ...data }) {
  return { ...data, evaluated: judged ?? null, images: made ? 'synthetic' : '' };
}
const factsOfModel = ({ words, ...model }) => ({ ...model, flags: words ?? null });

/// Settings that hold many others are folded.
function factOf(name, value) {
  const count = Object.keys(asRecord(value)).length;
  if (count > 0) {
    return folded(`fact-${slug(name)}`, counted(count, 'setting'), () => factList(value));
  }
  if (Array.isArray(value)) return value.map((part) => String(part)).join(', ');
  return typeof value === 'number' ? digits(value, 10) : unbroken(String(value));
}

function download(name, type, text) {
  return () => {
    const address = URL.createObjectURL(new Blob([text()], { type }));
    h('a', { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  };
}

function copyable(id, text) {
  const code = h('code', { id }, unbroken(text));
  const button = h('button', { type: 'button', click: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = 'Copied';
    } catch (fault) {
      getSelection().selectAllChildren(code);
      button.textContent = 'Selected: copy it';
    }
    setTimeout(() => { button.textContent = 'Copy'; }, 2000);
  } }, 'Copy');
  return h('div', { class: 'command' }, h('pre', { tabindex: 0 }, code), button);
}

function runsTable() {
  return tableOf('Runs', ['Mechanism', 'seed', 'state', 'steps', 'per second', 'time', 'folder'],
    results.runs.map((run) => [
      run.mechanism, String(run.seed ?? dash),
      run.error ? `${run.state}: ${run.error}` : [run.state, run.stage].filter(Boolean).join(', '),
      run.step === null ? dash : `${run.step} of ${run.steps ?? '?'}`,
      run.perSecond === null ? dash : digits(run.perSecond),
      run.seconds === null ? dash : secondsText(run.seconds), run.folder,
    ]));
}

function configurationSection() {
  const { command, commit, machine, seconds, peakBytes, budgetSeconds } = results;
  const whole = {
    command, commit, machine, state: results.state,
    time: seconds === null ? '' : secondsText(seconds),
    budget: budgetSeconds === null ? '' : secondsText(budgetSeconds),
    'peak memory': peakBytes === null ? '' : bytesText(peakBytes),
  };
  return sectionOf('configuration', 'Configuration', '',
    h('div', { class: 'columns' },
      h('div', {}, h('h3', {}, 'Comparison'), factList(whole)),
      h('div', {}, h('h3', {}, 'Model'), factList(factsOfModel(results.model))),
      h('div', {}, h('h3', {}, 'Data'), factList(factsOfData(results.data))),
      h('div', {}, h('h3', {}, 'Mechanisms'), factList(Object.fromEntries(
        results.mechanisms.map((mechanism) => [mechanism.name,
          Object.entries(mechanism.words).map(([name, value]) => `--${name} ${value}`).join(' ') ||
          mechanism.about])))),
      Object.keys(results.environment).length > 0
        ? h('div', {}, h('h3', {}, 'Environment'), factList(results.environment)) : null),
    results.runs.length > 0 ? folded('runs', counted(results.runs.length, 'run'), runsTable())
      : null,
    Object.keys(results.plan).length > 0 ? folded('plan', 'The plan as resolved',
      h('pre', { tabindex: 0 }, JSON.stringify(results.plan, null, 2))) : null);
}

/// Names of files beside the page; anything that leads elsewhere is left out.
const isBeside = (file) => /^figures\/[A-Za-z0-9_-][A-Za-z0-9._-]*\.(svg|png)$/.test(file);

/// What its authors ask to be said wherever it is copied.
const licence = () => folded('licence', 'Licence of Chart.js', h('p', { class: 'fine' },
  'The MIT License (MIT). Copyright (c) 2014-2022 Chart.js Contributors. ' +
  'Permission is hereby granted, free of charge, to any person obtaining a copy of this software ' +
  'and associated documentation files (the "Software"), to deal in the Software without ' +
  'restriction, including without limitation the rights to use, copy, modify, merge, publish, ' +
  'distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the ' +
  'Software is furnished to do so, subject to the following conditions: The above copyright ' +
  'notice and this permission notice shall be included in all copies or substantial portions of ' +
  'the Software. THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR ' +
  'IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A ' +
  'PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE ' +
  'LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR ' +
  'OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER ' +
  'DEALINGS IN THE SOFTWARE.'));

function takeSection() {
  const command = results.reproduce || results.command;
  const whole = results.reproduceFlags;
  const files = results.figures.filter((file) => isBeside(file.file));
  return sectionOf('take', 'Reproduce and take away', '',
    command ? [h('p', {}, 'The exact command:'), copyable('reproduce', command)] : null,
    whole ? folded('all-flags', 'The same with every flag, without the folder', () =>
      copyable('reproduce-flags', whole)) : null,
    h('p', { class: 'buttons' },
      h('button', { type: 'button', id: 'take-json', click: download('results.json',
        'application/json', () => JSON.stringify(results.raw, null, 1)) }, 'Results as JSON'),
      h('button', { type: 'button', id: 'take-csv', click: download('results.csv', 'text/csv',
        () => csvOf(results)) }, 'Measures as CSV'),
      h('button', { type: 'button', id: 'print', click: () => window.print() }, 'Print')),
    isServed ? h('p', {}, h('a', { href: 'report.html', download: 'report.html' },
      'This page as a file')) : null,
    files.length > 0 ? h('p', { class: 'fine' }, 'Figures as files: ', files.map((file, i) => [
      i > 0 ? ', ' : '', h('a', { href: file.file }, file.title || file.file)])) : null,
    hasCharts ? h('p', { class: 'fine' },
      `Figures are drawn by Chart.js ${Chart.version} (MIT licence, © Chart.js Contributors), ` +
      'which is part of this file.', licence())
      : h('p', { class: 'fine' }, 'This build of foci found no Chart.js: figures are tables.'));
}
