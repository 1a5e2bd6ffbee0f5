// A Java machine with compiled code, worker threads, garbage to collect and a heap to keep.

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

class RtJava {
    static final int WORKERS = 4;
    static final int ENTRIES = 50_000;

    static long mix(int rounds, long seed) {
        long hash = seed;
        for (int i = 0; i < rounds; i++) hash = hash * 6364136223846793005L + (hash >>> 33) + i;
        return hash;
    }

    static Map<Integer, String> remember() {
        Map<Integer, String> map = new HashMap<>();
        for (int i = 0; i < ENTRIES; i++) map.put(i, "value " + mix(3, i));
        return map;
    }

    static List<Long> work(ExecutorService pool) throws Exception {
        List<Future<Long>> parts = new ArrayList<>();
        for (int i = 0; i < WORKERS; i++) {
            long seed = i;
            parts.add(pool.submit(() -> mix(100_000, seed)));
        }
        List<Long> results = new ArrayList<>();
        for (Future<Long> part : parts) results.add(part.get());
        return results;
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            System.out.println("FAIL: " + what);
            System.exit(1);
        }
    }

    static void churn() {
        for (int i = 0; i < 2_000; i++) {
            byte[][] garbage = new byte[64][];
            for (int j = 0; j < garbage.length; j++) garbage[j] = new byte[1024 + j];
            check(garbage[63].length == 1087 && garbage[7][0] == 0, "fresh arrays are zeros");
        }
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(WORKERS);
        Map<Integer, String> kept = remember();
        for (int i = 0; i < 200; i++) mix(10_000, i); // until it is compiled
        List<Long> before = work(pool);
        churn();
        System.out.println("READY");
        System.out.flush();
        check(System.in.read() >= 0, "a byte to go on");
        check(work(pool).equals(before), "the same results of the same threads");
        churn();
        System.gc();
        check(kept.equals(remember()), "the same heap");
        Thread late = new Thread(() -> check(mix(100_000, 2) == before.get(2), "a new thread's result"));
        late.start();
        late.join();
        pool.shutdown();
        System.out.println("PASS");
        System.out.flush();
        System.exit(0);
    }
}
