/*
 * pour.js
 *		Writes a chunk to a socket again and again, for as long as the peer
 *		reads, but not without end.
 */
'use strict';

/*
 * Calls wrote(bytes) each time when more was written; bytes counts from here.
 * With a pause after each chunk, buffers of the kernel stay almost empty, and
 * what was written is about what the peer has read.
 */
function pour(socket, chunk, max_bytes, wrote, pause_ms) {
	const before = socket.bytesWritten;
	const written = () => socket.bytesWritten - before;
	const more = () => {
		let room = true;
		while (room && !socket.destroyed && written() < max_bytes) {
			room = socket.write(chunk);
			if (pause_ms)
				break;
		}
		wrote(written());
		if (room && pause_ms && written() < max_bytes)
			later();
	};
	const later = () => (pause_ms ? setTimeout(more, pause_ms) : more());
	socket.on('drain', later);
	more();
}

module.exports = { pour };
