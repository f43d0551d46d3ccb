//go:build !race

package clustertest

// raceDetector says whether the tests run under the race detector.
const raceDetector = false
