// Package sim runs request traces against the real index and a log of stripe groups
// without payload, to see what a policy is worth: hit ratio and write amplification.
//
// The log is what the store does in small: a fixed number of groups, one open for
// puts and one for survivors, each written front to back; when groups run out, the
// policy names one, its survivors move to the head and the rest is evicted. So the
// figures include what a policy alone does not show: dead space in groups, groups
// that are open and not full, and the budget for rewriting.
package sim
