// Package bucket keeps blocks that a node's drives may evict in object storage behind it, and brings them back when
// they are asked for. It is a Store in front of a node's own one.
//
//	        lookup, restore, delete
//	                 │
//	          ┌──────┴──────┐   index: which object has a key
//	          │   Store     │
//	          └──┬───────┬──┘
//	all calls    │       │   objects of many blocks, and what of them was deleted
//	    node's own Store │
//	         drives   Bucket (S3)
//
// What is sent. Blocks of chained namespaces of class Cache, whole ones without a salt, that some lookup has found
// since they were put: when the drives are filled to Options.BeginAt, a pass over the node's blocks sends those that
// no object has yet, Options.ObjectBytes together. So a block is in an object before it is evicted. No more goes out,
// and comes back, than the budgets allow (Budget).
//
// What is found. A lookup whose prefix ends on the drives goes on through the index. What only objects have is added
// where fetching it, by the time that fetches took lately, is quicker than computing it (LookupRequest.Cost, else
// Options.Recompute). A restore fetches these blocks, puts them into the node's Store, and loads them from there,
// after what the drives had. A chain with a Compute is loaded from the drives alone. A lease covers what the drives
// have.
//
// What is deleted. A deletion is answered once the bucket says so: of keys by an object that names them, of a
// namespace and what is larger by removing its objects. What is on its way to the bucket or from it meanwhile does not
// come back. An object whose call failed may come yet: nothing of it is found before a look at the bucket shows it, and
// what is deleted meanwhile is said of it, too, in an object that stays for saidFor. Such calls are not made again;
// where there are maxDoubts of them nothing is sent. Other calls are, mostRepeats times, and each is paid for.
//
// Where the bucket is away. Nothing of it is found, and the drives are served. A deletion takes what the drives have,
// and is an error, to be made again: who is told that something is deleted may have lost the node a moment later, and
// with it the only note. A node that begins then does not wait for the bucket. One that was down while others deleted
// (package fence) loses that from its drives alone, for the others have said so in the bucket; it forgets what it knew
// of the bucket, and sends nothing before it serves.
//
// What cannot be read. An object that the server refuses, of another version, or for which the index has no room
// (Options.IndexBytes), is left out, counted (Usage.Unread), and read again at the next look, those that failed last,
// or when there is room; one of another version is not. What is deleted is said of it, too, each key once of each
// object: a node that has not read it does not know which keys it has. Where that is too much (maxNamed) deletions
// fail, and name one, until the objects were read, or there is room for them, or they went; those that are found then
// are not counted. So a node whose index stays too small fails in time: its objects may be in others' indexes, and none
// is removed for that. One that is damaged is removed. Where what says what is deleted is refused, nothing of the
// namespace is found; where it is damaged, all its objects go; where it is of a newer version, each look at the
// namespace ends there, and each deletion in it fails: upgrade all nodes. Where nobody can say whose a space with
// objects, or announcements, is, each purge and each deletion of a namespace is made of all others, and is an error. A
// node that is alone (Options.Alone) does not look for such spaces when it purges: that is no error. Its deletions look
// at the bucket only where the last look did not take all in.
//
// Many nodes may share a bucket's prefix, with one key: each reads what the others wrote. While keys change there are
// two (Options.OtherKey), and a namespace has a space by each: what is found, and what is deleted, is of both. A
// deletion has to reach each node, as a cluster's do. A node takes no block of another's for forgetFor after it has
// heard of its deletion, and after a purge it sends none for longer (pauseFor), which others would remove.
//
// What a killed process was putting. It may come after its blocks were deleted, and a node that begins then has not
// heard of that. So each object is announced (SPACE/a/ID, with its keys) before it is looked what of it was deleted,
// and the announcement goes when the object is there, or after saidFor. A deletion lists the bucket, announcements
// first: an object that is neither announced nor there was begun later, by a process that has heard of the deletion,
// or is told of it. What is announced and not there is in doubt at each node, as if its own call had failed: what is
// deleted meanwhile is said of it, or the deletion fails. Where an announcement cannot be read, or there are more than
// knownAnnounced, all of the object is deleted when anything is (whole). No clock is compared with another node's.
// Objects of versions that announced nothing are held off by forgetFor alone.
//
// Objects are sealed (AES-256-GCM, a key of each object derived from Options.Key by HKDF-SHA256), names of namespaces
// are in none of their names. An object is
//
//	blocks    each sealed: length of its head, head (JSON: parent, depth, name, manifest), its parts
//	index     sealed: key, parent's hash, offset, length, bytes, of each block
//	trailer   magic, which key, salt, where the index is
//
// and is never written again: its name is new, and removed when all in it was deleted, or when there are more bytes
// than Options.MaxBytes, the oldest first. Objects that say what is deleted are made one when they are many (mergeAt).
// SPACE/spec, which says whose a space is, stays: one that was removed while another node sends would leave objects
// that no purge knows of.
package bucket
