SELECT namespace, tenant FROM posthouse_lane WHERE lane = ?1;
