'use strict';
/*
 * pictures.js MERMAID FILE...: draws every picture of Markdown files with that
 * build of Mermaid in Debian's Chromium, and prints a line of JSON for each, with
 * the error if it cannot be drawn.
 */

const fs = require('fs');
const { chromium } = require('playwright-core');

const ERROR_MAX = 200;

async function draw(page, text) {
  try {
    await page.evaluate(async (source) => {
      await window.mermaid.parse(source);
      await window.mermaid.render('picture', source);
    }, text);
  } catch (error) {
    return { error: error.message.slice(0, ERROR_MAX) };
  }
  return {};
}

async function main() {
  const [mermaid, ...files] = process.argv.slice(2);
  const browser = await chromium.launch({
    executablePath: '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--disable-background-networking'],
  });
  const page = await browser.newPage();
  await page.addScriptTag({ path: mermaid });
  for (const file of files) {
    for (const [, text] of fs.readFileSync(file, 'utf8').matchAll(/^```mermaid\n(.*?)^```/gms)) {
      console.log(JSON.stringify({ file, picture: text.split('\n')[1].trim(), ...await draw(page, text) }));
    }
  }
  await browser.close();
}

main();
