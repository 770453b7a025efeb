/*
 * address_fuzz.c
 *		An address that is not public is allowed only if a network of the list
 *		contains it.  If this fails, a role that may subscribe can reach what
 *		only the server should reach.
 *
 * Input: list of networks, the 16 or 4 bytes of an address.
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "relay/address.h"

#include "fuzz.h"

/* Addresses that are never public, by the C library's own definitions. */
static bool
is_private_ipv4(uint32 ip)
{
	return ip == INADDR_ANY || ip == INADDR_BROADCAST ||
		IN_MULTICAST(ip) || IN_BADCLASS(ip) ||
		ip >> 24 == IN_LOOPBACKNET ||
		ip >> 24 == 10 || ip >> 20 == (172 << 4 | 1) || ip >> 16 == (192 << 8 | 168) ||
		ip >> 16 == (169 << 8 | 254) || ip >> 22 == (100 << 2 | 1);
}

static bool
is_private_ipv6(const struct in6_addr *ip)
{
	return IN6_IS_ADDR_UNSPECIFIED(ip) || IN6_IS_ADDR_LOOPBACK(ip) ||
		IN6_IS_ADDR_MULTICAST(ip) || IN6_IS_ADDR_LINKLOCAL(ip) ||
		IN6_IS_ADDR_SITELOCAL(ip) || IN6_IS_ADDR_V4MAPPED(ip) ||
		IN6_IS_ADDR_V4COMPAT(ip) || (ip->s6_addr[0] & 0xfe) == 0xfc ||
		(ip->s6_addr[0] == 0x20 && ip->s6_addr[1] == 0x02);
}

/* Some addresses that are always public. */
static bool
is_known_public(const struct sockaddr *address, const uint8 *bytes)
{
	return address->sa_family == AF_INET ? bytes[0] == 8 :
		bytes[0] == 0x26 && bytes[1] == 0x00;
}

/* Does a network of the list contain the address?  Compares bit by bit. */
static bool
is_listed(const AddressNetworks *networks, int family, const uint8 *bytes)
{
	for (int i = 0; i < networks->count; i++)
	{
		const AddressNetwork *network = &networks->items[i];
		bool		same = network->family == family;

		for (int bit = 0; same && bit < network->prefix_bits; bit++)
			same = ((network->bytes[bit / 8] ^ bytes[bit / 8]) & (0x80 >> bit % 8)) == 0;
		if (same)
			return true;
	}
	return false;
}

/* Networks that are read, written and read again must be the same. */
static void
check_reread(const AddressNetworks *networks)
{
	for (int i = 0; i < networks->count; i++)
	{
		const AddressNetwork *network = &networks->items[i];
		int			size = network->family == AF_INET ? 4 : 16;
		char		text[INET6_ADDRSTRLEN];
		AddressNetworks again;
		char	   *bad;

		fuzz_check(network->family == AF_INET || network->family == AF_INET6);
		fuzz_check(network->prefix_bits >= 0 && network->prefix_bits <= 8 * size);
		inet_ntop(network->family, network->bytes, text, sizeof(text));
		fuzz_check(address_networks_parse(psprintf(" %s/%d ,", text, network->prefix_bits),
										  &again, &bad));
		fuzz_check(again.count == 1);
		fuzz_check(again.items[0].prefix_bits == network->prefix_bits);
		fuzz_check(memcmp(again.items[0].bytes, network->bytes, size) == 0);
	}
}

static void
check_address(const struct sockaddr *address, const void *bytes, bool is_private,
			  const AddressNetworks *networks)
{
	const AddressNetworks none = {0};
	char		text[INET6_ADDRSTRLEN];
	bool		is_public = address_allowed(address, &none);

	fuzz_check(!(is_private && is_public));
	fuzz_check(is_public || !is_known_public(address, bytes));
	fuzz_check(address_allowed(address, networks) ==
			   (is_public || is_listed(networks, address->sa_family, bytes)));
	inet_ntop(address->sa_family, bytes, text, sizeof(text));
	fuzz_check(address_text_allowed(text, networks) ==
			   address_allowed(address, networks));
}

void
fuzz_one(void)
{
	AddressNetworks networks;
	char	   *list = fuzz_field().text;
	FuzzField	bytes = fuzz_rest();
	struct sockaddr_in in = {.sin_family = AF_INET};
	struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
	struct sockaddr other = {.sa_family = AF_UNIX};
	char	   *bad = NULL;

	fuzz_check(address_networks_parse(list, &networks, &bad) ||
			   strstr(list, bad) != NULL);
	fuzz_check(networks.count >= 0 && networks.count <= ADDRESS_NETWORKS_MAX);
	check_reread(&networks);
	(void) address_text_allowed(list, &networks);
	fuzz_check(!address_allowed(&other, &networks));

	memcpy(&in.sin_addr, bytes.text, Min(bytes.length, sizeof(in.sin_addr)));
	check_address((struct sockaddr *) &in, &in.sin_addr,
				  is_private_ipv4(ntohl(in.sin_addr.s_addr)), &networks);
	memcpy(&in6.sin6_addr, bytes.text, Min(bytes.length, sizeof(in6.sin6_addr)));
	check_address((struct sockaddr *) &in6, &in6.sin6_addr,
				  is_private_ipv6(&in6.sin6_addr), &networks);
}
