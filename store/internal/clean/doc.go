// Package clean makes free groups. Cleaning is eviction: it drops committed blocks for space, and nothing else does but
// a put where the policy has an exact order (lru, s3fifo) and a logical cap: commit.Rows.Publish trims what is over it.
//
// When free groups run low, the cleaner takes the sealed group whose content the index calls worth least (run.go),
// drops what of it does not survive, writes the rest to a group of its own stream (rewrite.go), writes again what the
// group's log says and is still needed (carry.go), and hands the group over to be freed. What has no room in a log is
// promised by the commit that frees the group, and kept as soon as there is some (promises.go). Where the policy has an
// exact order, blocks go one by one whatever group they lie in, and cleaning only gathers the room (exact.go).
//
// Others have a group of theirs cleaned with Clean: who moves blocks off a drive, or has moved all but a few.
package clean
