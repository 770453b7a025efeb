// package.test.js
//
// What is published: its version, its files, its types, and that it can be
// installed without anything else.

'use strict';

const assert = require('assert/strict');
const { execFileSync } = require('child_process');
const fs = require('fs');
const os = require('os');
const path = require('path');
const { after, test } = require('node:test');

const HOME = path.join(__dirname, '..');
const ROOT = path.join(HOME, '../..');
const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'package-'));
const NPM = ['--offline', '--no-audit', '--no-fund', '--no-update-notifier', '--loglevel=error', '--cache', path.join(dir, 'cache')];
let archive;

after(() => fs.rmSync(dir, { recursive: true }));

test('the version is that of the extension, the licence too', () => {
  const control = fs.readFileSync(path.join(ROOT, 'idempotency.control'), 'utf8');
  const [, version] = /^default_version = '(.*)'$/m.exec(control);
  const described = JSON.parse(fs.readFileSync(path.join(HOME, 'package.json')));
  const locked = JSON.parse(fs.readFileSync(path.join(HOME, 'package-lock.json')));
  assert.deepEqual([described.version, locked.version], [version, version]);
  assert.equal(fs.readFileSync(path.join(HOME, 'LICENSE'), 'utf8'), fs.readFileSync(path.join(ROOT, 'LICENSE'), 'utf8'));
});

test('npm pack', () => {
  const printed = execFileSync('npm', ['pack', '--json', '--pack-destination', dir, ...NPM], { cwd: HOME });
  const [{ filename, files }] = JSON.parse(printed);
  archive = path.join(dir, filename);
  const modules = ['claims.js', 'database.js', 'guard.js', 'key.js', 'lease.js', 'webhooks.js'];
  const entries = ['express', 'fastify', 'hono', 'index'].flatMap((entry) => [`${entry}.d.ts`, `${entry}.js`]);
  assert.deepEqual(
    files.map((file) => file.path).sort(),
    ['LICENSE', 'README.md', 'package.json', ...[...modules, ...entries].map((file) => `lib/${file}`)].sort(),
  );
});

test('it is installed in an empty directory', () => {
  const app = path.join(dir, 'app');
  fs.mkdirSync(app);
  execFileSync('npm', ['install', archive, ...NPM], { cwd: app });
  assert.deepEqual(fs.readdirSync(path.join(app, 'node_modules')).filter((name) => !name.startsWith('.')), ['idempotency-pg']);
  const program = `for (const entry of ['', '/express', '/fastify', '/hono']) {
    console.log(Object.keys(require('idempotency-pg' + entry)).join(' '));
  }`;
  assert.equal(
    execFileSync(process.execPath, ['-e', program], { cwd: app }).toString(),
    'claim complete consume fail isRetryable lease renew transact transaction webhookReceiver\n'
    + 'idempotencyKey keepRawBody\nidempotencyKey\nidempotencyKey\n',
  );
});

test('the types', () => {
  const tsc = path.join(HOME, 'node_modules/.bin/tsc');
  const options = ['--strict', '--noEmit', '--module', 'nodenext', '--esModuleInterop', 'test/types.ts'];
  try {
    execFileSync(tsc, options, { cwd: HOME });
  } catch (error) {
    assert.fail(error.stdout.toString());
  }
});
