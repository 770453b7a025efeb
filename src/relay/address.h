/*
 * address.h
 *		Which network addresses a webhook may be sent to.
 */
#ifndef RELAY_ADDRESS_H
#define RELAY_ADDRESS_H

#include <sys/socket.h>

#include "utils/guc.h"

/* The most networks that idempotency.webhook_allowed_networks may have. */
#define ADDRESS_NETWORKS_MAX 64

typedef struct AddressNetwork
{
	int			family;			/* AF_INET or AF_INET6 */
	int			prefix_bits;
	uint8		bytes[16];		/* network order; the first 4 for AF_INET */
} AddressNetwork;

typedef struct AddressNetworks
{
	int			count;
	AddressNetwork items[ADDRESS_NETWORKS_MAX];
} AddressNetworks;

/*
 * Reads a list such as '10.0.0.0/8, ::1'.  Returns false if an entry, *bad, is
 * not a network or exceeds the limit.
 */
extern bool address_networks_parse(const char *list, AddressNetworks *networks,
								   char **bad);

/* Check hook of idempotency.webhook_allowed_networks. */
extern bool address_check_setting(char **newval, void **extra,
								  GucSource source);

/* Is the address public, or inside one of the networks?  Cannot fail. */
extern bool address_allowed(const struct sockaddr *address,
							const AddressNetworks *networks);

/* The same for an address in text form; false if it is not an address. */
extern bool address_text_allowed(const char *text,
								 const AddressNetworks *networks);

#endif							/* RELAY_ADDRESS_H */
