/*
 * address.c
 *		Which network addresses a webhook may be sent to.
 *
 * A role that may subscribe chooses a URL to which the database server then
 * connects.  This must not give access to what only the server can reach: the
 * server itself, its private network, the metadata service of a cloud.  So
 * http.c asks here about each address before it connects to it, after the name
 * was resolved.  Unusual spellings, and names that later resolve to another
 * address, make no difference.
 *
 * address_allowed() and address_text_allowed() are called from libcurl's
 * callbacks and must neither raise an error nor allocate memory.
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "relay/address.h"

#define ADDRESS_BLANKS " \t\r\n"

/* The longest text of a network: an IPv6 address and a prefix length. */
#define ADDRESS_TEXT_MAX (INET6_ADDRSTRLEN + 4)

/*
 * Addresses that are not public, by the registries of special-purpose
 * addresses.  Of IPv6 only 2000::/3 is public.  This leaves out loopback,
 * unique local, link-local and multicast addresses, and those that contain an
 * IPv4 address (::/96, ::ffff:0:0/96, 64:ff9b::/96).
 */
static const char *const address_denied[] = {
	"0.0.0.0/8",				/* unspecified, "this network" */
	"10.0.0.0/8",				/* private */
	"100.64.0.0/10",			/* carrier-grade NAT */
	"127.0.0.0/8",				/* loopback */
	"168.63.129.16/32",			/* a cloud's metadata service */
	"169.254.0.0/16",			/* link-local, metadata services */
	"172.16.0.0/12",			/* private */
	"192.0.0.0/24",				/* protocol assignments */
	"192.0.2.0/24",				/* documentation */
	"192.88.99.0/24",			/* 6to4 relays */
	"192.168.0.0/16",			/* private */
	"198.18.0.0/15",			/* benchmarking */
	"198.51.100.0/24",			/* documentation */
	"203.0.113.0/24",			/* documentation */
	"224.0.0.0/3",				/* multicast, reserved, broadcast */
	"::/3",						/* all that is not 2000::/3 ... */
	"4000::/2",
	"8000::/1",					/* ... up to here */
	"2001::/23",				/* Teredo, benchmarking, assignments */
	"2001:db8::/32",			/* documentation */
	"2002::/16",				/* 6to4 */
	"3fff::/20",				/* documentation */
};

/* Reads a decimal number of 1 to 3 digits that is at most max. */
static bool
address_parse_bits(const char *text, int max, int *bits)
{
	size_t		length = strlen(text);

	if (length < 1 || length > 3 || strspn(text, "0123456789") != length)
		return false;
	*bits = (int) strtol(text, NULL, 10);
	return *bits <= max;
}

/* Reads 'address' or 'address/bits'; false if it is neither. */
static bool
address_network_parse(const char *text, AddressNetwork *network)
{
	char		copy[ADDRESS_TEXT_MAX + 1];
	char	   *slash;

	if (strlcpy(copy, text, sizeof(copy)) >= sizeof(copy))
		return false;
	slash = strchr(copy, '/');
	if (slash != NULL)
		*slash = '\0';

	network->family = strchr(copy, ':') != NULL ? AF_INET6 : AF_INET;
	network->prefix_bits = network->family == AF_INET6 ? 128 : 32;
	if (inet_pton(network->family, copy, network->bytes) != 1)
		return false;

	return slash == NULL ||
		address_parse_bits(slash + 1, network->prefix_bits,
						   &network->prefix_bits);
}

/* Removes blanks on both sides, in place. */
static char *
address_trim(char *string)
{
	size_t		length;

	string += strspn(string, ADDRESS_BLANKS);
	length = strlen(string);
	while (length > 0 && strchr(ADDRESS_BLANKS, string[length - 1]) != NULL)
		length--;
	string[length] = '\0';
	return string;
}

/* Is the address, given as a network with all bits, inside the network? */
static bool
address_in_network(const AddressNetwork *address, const AddressNetwork *network)
{
	int			whole_bytes = network->prefix_bits / 8;
	int			rest_bits = network->prefix_bits % 8;
	uint8		mask = (uint8) (0xff << (8 - rest_bits));
	uint8		difference;

	if (address->family != network->family ||
		memcmp(address->bytes, network->bytes, whole_bytes) != 0)
		return false;

	if (rest_bits == 0)
		return true;
	difference = address->bytes[whole_bytes] ^ network->bytes[whole_bytes];
	return (difference & mask) == 0;
}

/* Is the address inside one of the networks, or else not denied? */
static bool
address_judge(const AddressNetwork *address, const AddressNetworks *networks)
{
	for (int i = 0; i < networks->count; i++)
	{
		if (address_in_network(address, &networks->items[i]))
			return true;
	}

	for (int i = 0; i < (int) lengthof(address_denied); i++)
	{
		AddressNetwork denied;

		if (!address_network_parse(address_denied[i], &denied) ||
			address_in_network(address, &denied))
			return false;
	}

	return true;
}

bool
address_networks_parse(const char *list, AddressNetworks *networks, char **bad)
{
	char	   *rest = pstrdup(list);
	char	   *entry;

	networks->count = 0;
	while ((entry = strsep(&rest, ",")) != NULL)
	{
		entry = address_trim(entry);
		if (entry[0] == '\0')
			continue;
		*bad = entry;
		if (networks->count == ADDRESS_NETWORKS_MAX ||
			!address_network_parse(entry, &networks->items[networks->count]))
			return false;
		networks->count++;
	}
	return true;
}

bool
address_check_setting(char **newval, void **extra, GucSource source)
{
	AddressNetworks networks;
	char	   *bad;

	if (address_networks_parse(*newval, &networks, &bad))
		return true;
	if (networks.count == ADDRESS_NETWORKS_MAX)
		GUC_check_errdetail("At most %d networks can be allowed.",
							ADDRESS_NETWORKS_MAX);
	else
		GUC_check_errdetail("\"%s\" is not an IP address or a network in CIDR notation.",
							bad);
	return false;
}

/* Is the address public, or inside one of the networks? */
bool
address_allowed(const struct sockaddr *address, const AddressNetworks *networks)
{
	AddressNetwork one;

	one.family = address->sa_family;
	if (address->sa_family == AF_INET)
	{
		const struct sockaddr_in *in = (const struct sockaddr_in *) address;

		one.prefix_bits = 32;
		memcpy(one.bytes, &in->sin_addr, sizeof(in->sin_addr));
	}
	else if (address->sa_family == AF_INET6)
	{
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *) address;

		one.prefix_bits = 128;
		memcpy(one.bytes, &in6->sin6_addr, sizeof(in6->sin6_addr));
	}
	else
		return false;

	return address_judge(&one, networks);
}

/* As address_allowed, for an address as text; false if it is not one. */
bool
address_text_allowed(const char *text, const AddressNetworks *networks)
{
	AddressNetwork one;

	return strchr(text, '/') == NULL &&
		address_network_parse(text, &one) &&
		address_judge(&one, networks);
}
