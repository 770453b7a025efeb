'use strict';
/*
 * widths.js WIDTH... -- ADDRESS...: opens pages in Debian's Chromium, in windows
 * of each width, and prints a line of JSON for each: how wide the page is, how
 * many pictures are not drawn, and how wide the narrowest one is.
 */

const { chromium } = require('playwright-core');

const HEIGHT = 900;
const DRAWING_MS_MAX = 60_000; // and a page loads while it is drawn

const end = process.argv.indexOf('--');
const widths = process.argv.slice(2, end).map(Number);
const addresses = process.argv.slice(end + 1);

async function look(browser, address, width) {
  const page = await browser.newPage({ viewport: { width, height: HEIGHT } });
  await page.goto(address, { timeout: DRAWING_MS_MAX });
  await page.waitForFunction(() => !document.querySelector('pre.mermaid'), null, { timeout: DRAWING_MS_MAX })
    .catch(() => {});
  const seen = await page.evaluate(() => ({
    wide: document.documentElement.scrollWidth,
    undrawn: document.querySelectorAll('pre.mermaid').length,
    pictures: [...document.querySelectorAll('.mermaid')].map((picture) => picture.offsetWidth),
  }));
  await page.close();
  return { address, width, ...seen, narrowest: Math.min(...seen.pictures) };
}

async function main() {
  const browser = await chromium.launch({
    executablePath: '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--disable-background-networking'],
  });
  for (const address of addresses) {
    for (const width of widths) {
      console.log(JSON.stringify(await look(browser, address, width)));
    }
  }
  await browser.close();
}

main();
