// checkout_prisma.js
//
// Takes an order once for each key, with Prisma: prisma is a PrismaClient, and
// lines has the quantities, such as { cup: 2, plate: 1 }. The steps are explained
// in docs/drivers.md, "The examples".

'use strict';

async function checkout(prisma, key, lines) {
  const [claim] = await prisma.$queryRaw`
    SELECT outcome, token, response FROM idem_claim(${key}, 'checkout', ${'40 s'}, ${JSON.stringify(lines)})`;
  if (claim.outcome === 'completed') return claim.response;
  if (claim.outcome !== 'claimed') throw new Error(claim.outcome);

  return prisma.$transaction(async (tx) => {
    const [{ outcome }] = await tx.$queryRaw`SELECT outcome FROM stock_reserve_many(${lines}, ${key})`;
    if (outcome === 'reserved') await tx.$queryRaw`SELECT outbox_enqueue('order.placed', ${lines}, ${key})`;
    await tx.$executeRaw`SELECT idem_complete(${key}, ${claim.token}, ${{ outcome }}, 'checkout')`;
    return { outcome };
  });
}

module.exports = { checkout };
