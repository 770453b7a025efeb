/*
 * credentials.c
 *		Files with tokens, client certificates, secrets and signing keys for
 *		receivers.
 *
 * A file is idempotency.webhook_credentials_directory/DATABASE/RECEIVER/NAME.
 * The subscription has only the NAME.  RECEIVER is the host of its URL, with
 * the port unless it is 443, so a role that chooses URLs cannot make the relay
 * send a file to a host for which the administrator has not put it there, or
 * sign with the secret of another receiver.
 *
 * Files are read each time that they are needed, so a new token or certificate
 * takes effect with the next request.  That takes some microseconds, far less
 * than a request over TLS.  The caller waits, so the files must be local.
 *
 * Nothing here raises an error because of a file.  No message has a part of
 * the content of a file.
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands/dbcommands.h"
#include "miscadmin.h"

#include "base/compat.h"
#include "base/settings.h"
#include "base/worker.h"
#include "relay/credentials.h"
#include "relay/signature.h"
#include "relay/url.h"

#define CREDENTIALS_TOKEN_BYTES_MAX 8192
#define CREDENTIALS_CERTIFICATE_BYTES_MAX (64 * 1024)
#define CREDENTIALS_SECRETS_BYTES_MAX 1024
#define CREDENTIALS_SECRETS_MAX 2	/* lines: the new secret and the old one */
#define CREDENTIALS_FILE_PREFIX "file:"
#define CREDENTIALS_NAME_MAX 255
#define CREDENTIALS_NAME_CHARACTERS \
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"

/* If it is a pipe, its writer is not waited for. */
#define CREDENTIALS_OPEN_FLAGS \
	(O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY)

/* What is read, as messages name it, and its limit. */
typedef struct CredentialsKind
{
	const char *what;
	int			bytes_max;
	bool		needs_tls;		/* it is sent */
} CredentialsKind;

static const CredentialsKind credentials_token = {
	"authorization_file", CREDENTIALS_TOKEN_BYTES_MAX, true
};
static const CredentialsKind credentials_certificate = {
	"client_certificate", CREDENTIALS_CERTIFICATE_BYTES_MAX, true
};
static const CredentialsKind credentials_secret = {
	"secret", CREDENTIALS_SECRETS_BYTES_MAX, false
};
static const CredentialsKind credentials_signing_key = {
	"signing_key", CREDENTIALS_SECRETS_BYTES_MAX, false
};

/*
 * A name that begins with a dot could be that of the parent directory.
 */
static bool
credentials_is_plain_name(const char *name)
{
	return name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL;
}

/*
 * A worker of ours is outside of a transaction here, and knows the name.  Any
 * other process is in one.
 */
static const char *
credentials_database(void)
{
	const char *database = worker_database_name();

	return database[0] != '\0' ? database : get_database_name(MyDatabaseId);
}

/* Returns the directory with the files for a URL, or NULL if it has none. */
static const char *
credentials_directory(const CredentialsKind *kind, const char *url)
{
	const char *database = credentials_database();
	const char *receiver = url_receiver(url);

	if (settings_webhook_credentials_directory[0] == '\0' ||
		receiver == NULL || !credentials_is_plain_name(receiver) ||
		!credentials_is_plain_name(database) ||
		(kind->needs_tls && !url_is_https(url)))
		return NULL;
	return psprintf("%s/%s/%s", settings_webhook_credentials_directory,
					database, receiver);
}

/*
 * Finds a file, which may be a symbolic link to a file in the same directory or
 * below it, as tools that replace several files at once make them.  Sets errno
 * and returns false if there is none.
 */
static bool
credentials_find(const char *directory, const char *name, char *path)
{
	char		real_directory[PATH_MAX];
	size_t		length;

	if (realpath(directory, real_directory) == NULL ||
		realpath(psprintf("%s/%s", directory, name), path) == NULL)
		return false;
	length = strlen(real_directory);
	errno = EXDEV;
	return strncmp(path, real_directory, length) == 0 && path[length] == '/';
}

/*
 * Reads an open file, to its end, into palloc'd memory.  Returns what is wrong
 * with it, or NULL.
 */
static const char *
credentials_read_open(int fd, int bytes_max, char **content)
{
	struct stat status;
	ssize_t		length = 0;
	ssize_t		got;

	if (fstat(fd, &status) != 0)
		return "cannot be read";
	if (!S_ISREG(status.st_mode))
		return "is not a regular file";
	*content = palloc(bytes_max + 2);
	do
	{
		got = read(fd, *content + length, bytes_max + 1 - length);
		length += Max(got, 0);
	} while ((got < 0 && errno == EINTR) || (got > 0 && length <= bytes_max));
	if (got < 0)
		return "cannot be read";
	if (length > bytes_max)
		return "is too long";
	if (length == 0)
		return "is empty";
	(*content)[length] = '\0';
	if (strlen(*content) != (size_t) length)
		return "has a null byte";
	return NULL;
}

/*
 * Returns the content of a file, or NULL and why it cannot be used.
 */
static char *
credentials_read(const CredentialsKind *kind, const char *url,
				 const char *name, const char **wrong)
{
	const char *directory = credentials_directory(kind, url);
	char		path[PATH_MAX];
	char	   *content = NULL;
	int			fd = -1;

	*wrong = NULL;
	if (directory == NULL)
		*wrong = psprintf("%s: idempotency.webhook_credentials_directory has none for this receiver",
						  kind->what);
	else if (!credentials_is_plain_name(name))
		*wrong = psprintf("%s is not the name of a file", kind->what);
	if (*wrong != NULL)
		return NULL;
	if (credentials_find(directory, name, path))
		fd = open(path, CREDENTIALS_OPEN_FLAGS);
	if (fd < 0)
	{
		*wrong = psprintf("%s \"%s\" cannot be opened: %s", kind->what, name,
						  errno == EXDEV ? "it is outside of the receiver's directory" :
						  strerror(errno));
		return NULL;
	}
	*wrong = credentials_read_open(fd, kind->bytes_max, &content);
	(void) close(fd);
	if (*wrong == NULL)
		return content;
	*wrong = psprintf("%s \"%s\" %s", kind->what, name, *wrong);
	return NULL;
}

const char *
credentials_read_authorization(const char *url, const char *name,
							   const char **value)
{
	const char *wrong;
	char	   *token = credentials_read(&credentials_token, url, name, &wrong);
	size_t		length;

	if (token == NULL)
		return wrong;
	length = strlen(token);
	if (token[length - 1] == '\n')
		token[--length] = '\0';
	if (length > 0 && token[length - 1] == '\r')
		token[--length] = '\0';
	if (strspn(token, " ") == length)
		return psprintf("%s \"%s\" is empty", credentials_token.what, name);
	for (const char *c = token; *c != '\0'; c++)
	{
		if (*c < ' ' || *c > '~')
			return psprintf("%s \"%s\" is not one line of printable ASCII characters",
							credentials_token.what, name);
	}
	*value = token;
	return NULL;
}

const char *
credentials_read_certificate(const char *url, const char *name,
							 const char **pem)
{
	const char *wrong;

	*pem = credentials_read(&credentials_certificate, url, name, &wrong);
	return wrong;
}

const char *
credentials_file(const char *secret)
{
	size_t		length = strlen(CREDENTIALS_FILE_PREFIX);

	return strncmp(secret, CREDENTIALS_FILE_PREFIX, length) == 0 ?
		secret + length : NULL;
}

bool
credentials_name_valid(const char *name)
{
	size_t		length = strlen(name);

	return credentials_is_plain_name(name) && length <= CREDENTIALS_NAME_MAX &&
		strspn(name, CREDENTIALS_NAME_CHARACTERS) == length;
}

/* Can this line of a file sign? */
static bool
credentials_can_sign(const CredentialsKind *kind, const char *line)
{
	return kind == &credentials_signing_key ?
		signature_public_key(line) != NULL : signature_secret_valid(line);
}

const char *
credentials_read_secrets(const char *url, const char *name, bool signing_key,
						 List **secrets)
{
	const CredentialsKind *kind = signing_key ?
		&credentials_signing_key : &credentials_secret;
	const char *wrong;
	char	   *rest = credentials_read(kind, url, name, &wrong);
	char	   *line;

	*secrets = NIL;
	if (rest == NULL)
		return wrong;
	while ((line = strsep(&rest, "\n")) != NULL)
	{
		size_t		length = strlen(line);

		if (length > 0 && line[length - 1] == '\r')
			line[--length] = '\0';
		if (length == 0 && rest == NULL && *secrets != NIL)
			break;
		if (list_length(*secrets) == CREDENTIALS_SECRETS_MAX ||
			!credentials_can_sign(kind, line))
			return psprintf("%s \"%s\" does not consist of one or two lines that can sign",
							kind->what, name);
		*secrets = lappend(*secrets, line);
	}
	return NULL;
}
