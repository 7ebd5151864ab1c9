// Package support gathers what somebody needs to help with a store into one file: a
// zstd-compressed tar of JSON and text, small, and without anything that must not leave
// the machine.
//
//	about.json       version, system, when, what could not be gathered and why
//	doctor.json      the machine's checks
//	options.json     the options of the process that has the store open
//	stats.json       its Stats
//	log.txt          the last lines of its log
//	devices.json     what the catalog says of the devices
//	groups.json      and of the stripe groups
//	namespaces.json  names, shapes, sizes
//
// The first of these need a process that has the store open with its admin socket; the
// last three are read beside it.
//
// Invariants:
//
//   - No payload, no block's key or name, no salt, and not the store's secret: nothing is
//     read that holds them but the catalog, of which only the tables named above are
//     written (a test looks for all of these in a bundle).
//   - Names of tenants, namespaces and models, paths and the host's name are in it.
//   - What cannot be had is left out and named in about.json; a bundle is made of what
//     there is.
package support
